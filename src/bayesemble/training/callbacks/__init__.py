"""Callbacks: what others want to know of training, and may stop it by.

be.fit(task, method, data, epochs=20, callbacks=[be.callbacks.CSV("log.csv"), be.callbacks.TensorBoard("runs/a")])
"""

from bayesemble.training.callbacks.base import Callback as Callback
from bayesemble.training.callbacks.base import figures as figures
from bayesemble.training.callbacks.csv_file import CSV as CSV
from bayesemble.training.callbacks.pruning import OptunaPruning as OptunaPruning
from bayesemble.training.callbacks.trackers import MLflow as MLflow
from bayesemble.training.callbacks.trackers import TensorBoard as TensorBoard
from bayesemble.training.callbacks.trackers import WandB as WandB
