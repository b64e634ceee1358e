"""Rows: embedded sets, files, tables, corrupted images."""

from bayesemble.data.catalogue import DATASETS, DataSet, Split, find_dataset, load_split

__all__ = ["DATASETS", "DataSet", "Split", "find_dataset", "load_split"]
