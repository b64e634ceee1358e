"""Comparisons: several methods on one data set, side by side."""
