"""Pages: one self-contained HTML file, without any request to a network. They need the extra `report`."""
