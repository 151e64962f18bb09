"""FLOPs in the paper's convention: of a model (:mod:`.counting`), of a training (:mod:`.training`), and the paper's own
(:mod:`.paper`)."""

from selfish_rnn.analysis.flops.counting import MatrixUse, ModelFlops, flops
from selfish_rnn.analysis.flops.training import TrainingFlops, experiment_flops, run_flops

__all__ = ["MatrixUse", "ModelFlops", "TrainingFlops", "experiment_flops", "flops", "run_flops"]
