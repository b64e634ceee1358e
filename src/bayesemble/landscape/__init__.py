"""The loss landscape of an ensemble: pure functions of a fitted ensemble and data, each with a small result."""

from bayesemble.landscape.align import aligned as aligned
from bayesemble.landscape.diversity import DiversityAccuracy as DiversityAccuracy
from bayesemble.landscape.diversity import diversity_accuracy as diversity_accuracy
from bayesemble.landscape.diversity import independent_limit as independent_limit
from bayesemble.landscape.diversity import perturbed_limit as perturbed_limit
from bayesemble.landscape.path import Path as Path
from bayesemble.landscape.path import path as path
from bayesemble.landscape.plane import Plane as Plane
from bayesemble.landscape.plane import plane as plane
from bayesemble.landscape.plane import radial_plane as radial_plane
from bayesemble.landscape.sharpness import Sharpness as Sharpness
from bayesemble.landscape.sharpness import sharpness as sharpness
from bayesemble.landscape.similarity import Similarity as Similarity
from bayesemble.landscape.similarity import similarity as similarity
from bayesemble.landscape.subspaces import SubspaceEnsembles as SubspaceEnsembles
from bayesemble.landscape.subspaces import ensembles_of_subspaces as ensembles_of_subspaces
from bayesemble.landscape.subspaces import sample_subspace as sample_subspace
from bayesemble.landscape.subspaces import weight_average as weight_average
from bayesemble.landscape.trajectory import Embedding as Embedding
from bayesemble.landscape.trajectory import embedding as embedding
