"""The loss landscape of an ensemble: functions of an ensemble and data, each with a small result."""

from bayesemble.diagnostics.landscape.align import aligned as aligned
from bayesemble.diagnostics.landscape.diversity import DiversityAccuracy as DiversityAccuracy
from bayesemble.diagnostics.landscape.diversity import diversity_accuracy as diversity_accuracy
from bayesemble.diagnostics.landscape.diversity import independent_limit as independent_limit
from bayesemble.diagnostics.landscape.diversity import perturbed_limit as perturbed_limit
from bayesemble.diagnostics.landscape.embeddings import Embedding as Embedding
from bayesemble.diagnostics.landscape.embeddings import embedding as embedding
from bayesemble.diagnostics.landscape.hessians import Sharpness as Sharpness
from bayesemble.diagnostics.landscape.hessians import sharpness as sharpness
from bayesemble.diagnostics.landscape.neighbourhoods import SubspaceEnsembles as SubspaceEnsembles
from bayesemble.diagnostics.landscape.neighbourhoods import ensembles_of_subspaces as ensembles_of_subspaces
from bayesemble.diagnostics.landscape.neighbourhoods import sample_subspace as sample_subspace
from bayesemble.diagnostics.landscape.neighbourhoods import weight_average as weight_average
from bayesemble.diagnostics.landscape.paths import Path as Path
from bayesemble.diagnostics.landscape.paths import path as path
from bayesemble.diagnostics.landscape.planes import Plane as Plane
from bayesemble.diagnostics.landscape.planes import plane as plane
from bayesemble.diagnostics.landscape.planes import radial_plane as radial_plane
from bayesemble.diagnostics.landscape.shifts import ShiftDivergence as ShiftDivergence
from bayesemble.diagnostics.landscape.shifts import divergence_under_shift as divergence_under_shift
from bayesemble.diagnostics.landscape.similarities import Similarity as Similarity
from bayesemble.diagnostics.landscape.similarities import similarity as similarity
