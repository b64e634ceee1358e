"""Data sets that come with the library, for trying things out and for comparisons."""

from bayesemble.data.catalogue import DATASETS, DataSet, Split, find_dataset, load_split

__all__ = ["DATASETS", "DataSet", "Split", "find_dataset", "load_split"]
