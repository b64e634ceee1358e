"""Run folders: what of a run is on disk, who may write it, and how it is known again."""
