"""The shell for scikit-learn, and the recipe that tables are trained by.

A classifier and a regressor take any method of the registry. Both put a residual network for tables
(`bayesemble.models.tabular`) below a method, standardise inputs and targets, and give float64 in the original units.
Settings of a method are nested parameters, to the constructor and to `set_params`:

    EnsembleRegressor("repulsive", method__repulsion=0.5)
    GridSearchCV(EnsembleClassifier("repulsive"), {"method__repulsion": [0.1, 1.0]})

Training stops early by the loss on held-out rows, unless the method gathers networks along the whole of training (swag,
subspace, snapshot, csgmcmc, hmc, and repulsive with sequential=True), which then takes all rows and all epochs.
`cross_validate` trains folds side by side.
"""

from bayesemble.estimators.base import EnsembleEstimator as EnsembleEstimator
from bayesemble.estimators.classifier import EnsembleClassifier as EnsembleClassifier
from bayesemble.estimators.cross_validation import cross_validate as cross_validate
from bayesemble.estimators.recipe import can_stop_early as can_stop_early
from bayesemble.estimators.regressor import EnsembleRegressor as EnsembleRegressor
