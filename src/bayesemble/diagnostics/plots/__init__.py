"""Figures: every function draws one result, `plot_x(result, ax=None) -> ax`.

They draw on the axes `ax`, or on those of a new figure. What may stand beside the same of other methods takes `label`,
the name of the method, and `color`, which is the next one if none is given. They need the extra `plots`.
"""

from bayesemble.diagnostics.plots.calibration import plot_coverage as plot_coverage
from bayesemble.diagnostics.plots.calibration import plot_pit as plot_pit
from bayesemble.diagnostics.plots.calibration import plot_reliability as plot_reliability
from bayesemble.diagnostics.plots.comparison import plot_scores as plot_scores
from bayesemble.diagnostics.plots.comparison import plot_size_curve as plot_size_curve
from bayesemble.diagnostics.plots.diversity import plot_diversity_accuracy as plot_diversity_accuracy
from bayesemble.diagnostics.plots.diversity import plot_member_diversity as plot_member_diversity
from bayesemble.diagnostics.plots.diversity import plot_subspace_ensembles as plot_subspace_ensembles
from bayesemble.diagnostics.plots.gallery import plot_gallery as plot_gallery
from bayesemble.diagnostics.plots.landscape import plot_embedding as plot_embedding
from bayesemble.diagnostics.plots.landscape import plot_path as plot_path
from bayesemble.diagnostics.plots.landscape import plot_plane as plot_plane
from bayesemble.diagnostics.plots.landscape import plot_sharpness as plot_sharpness
from bayesemble.diagnostics.plots.landscape import plot_similarity as plot_similarity
from bayesemble.diagnostics.plots.priors import plot_learned_prior as plot_learned_prior
from bayesemble.diagnostics.plots.priors import plot_matched_prior as plot_matched_prior
from bayesemble.diagnostics.plots.regression import plot_bands as plot_bands
from bayesemble.diagnostics.plots.regression import plot_predictions as plot_predictions
from bayesemble.diagnostics.plots.training import plot_forces as plot_forces
from bayesemble.diagnostics.plots.training import plot_history as plot_history
from bayesemble.diagnostics.plots.training import plot_weights as plot_weights
from bayesemble.diagnostics.plots.uncertainty import (
    plot_accuracy_against_confidence as plot_accuracy_against_confidence,
)
from bayesemble.diagnostics.plots.uncertainty import plot_entropy as plot_entropy
from bayesemble.diagnostics.plots.uncertainty import plot_risk_coverage as plot_risk_coverage
