"""Every quantity of the report in a sentence."""

CITATION = (
    "K. A. Wang, G. Pleiss, J. R. Gardner, S. Tyree, K. Q. Weinberger, A. G. Wilson: Exact "
    "Gaussian Processes on a Million Data Points. Advances in Neural Information Processing "
    "Systems 32, 2019. Its numbers are those printed in tables 1 to 5."
)

DEFINITIONS = (
    (
        "RMSE",
        "The root of the mean squared error of predicted means on the test points, in standard "
        "deviations of the training targets: predicting their mean would give about 1. Lower is "
        "better.",
    ),
    (
        "NLL",
        "The mean over test points of −log N(y | predicted mean, predicted variance with noise), "
        "in the same units. Lower is better; it punishes intervals that are too narrow and those "
        "that are too wide.",
    ),
    (
        "Mean ± standard deviation",
        "Over seeds, each of which splits the data anew into 64 % training, 16 % validation and "
        "20 % test; the deviation divides by the number of seeds less one, and is left out for a "
        "single seed.",
    ),
    (
        "95 % interval holds",
        "The share of test points within the predicted mean ± 1.96 predicted standard deviations.",
    ),
    (
        "Noise variance",
        "The learned variance σ² of the observation noise, in squared units of the target.",
    ),
    (
        "Training",
        "Seconds of wall-clock time to learn hyperparameters (for LightGBM, the trees).",
    ),
    (
        "Precomputation",
        "Seconds for what is computed once, after training, for all predictions: for an exact GP "
        "the solve for K̂⁻¹y and what variances need.",
    ),
    ("Prediction", "Seconds for 1,000 means and variances, after the precomputation."),
    (
        "Partitions",
        "The number of parts in which the kernel matrix is worked through, the paper's p.",
    ),
    (
        "Kernel evaluations",
        "How often the kernel was evaluated for a pair of points, in training and precomputation.",
    ),
    (
        "Memory",
        "The most memory that the process held during the run, beyond its data and libraries.",
    ),
    (
        "Exact GP",
        "Gaussian-process regression on all training points, solved by conjugate gradients to a "
        "tolerance: megagp as it comes, and with “paper's recipe” trained as the paper did. "
        "“Best quality” spends more time for accuracy. All are held against the paper's exact GP.",
    ),
    (
        "SGPR, SVGP",
        "The approximations with inducing points of Titsias (2009), m = 512, and Hensman et al. "
        "(2013), m = 1,024, in megagp's implementation.",
    ),
    (
        "LightGBM",
        "Gradient-boosted trees on the same splits, for context: what a practitioner might take "
        "instead. The paper has no such column.",
    ),
    (
        "Subset, stand-in",
        "A subset has fewer training points than the paper's, so that no verdict is given; a "
        "stand-in is another data set of similar shape where the paper's is not at hand, and "
        "goes under its own name.",
    ),
)
