"""Rows: embedded sets, files, tables, corrupted images."""

from bayesemble.data.catalogue import DATASETS as DATASETS
from bayesemble.data.catalogue import DataSet as DataSet
from bayesemble.data.catalogue import Split as Split
from bayesemble.data.catalogue import find_dataset as find_dataset
from bayesemble.data.catalogue import load_split as load_split
