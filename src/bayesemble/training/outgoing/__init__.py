"""What goes out: plain torch modules, files that other programs run, and models of other libraries."""
