"""A robot arm of any size: data without a file."""

from __future__ import annotations

import numpy as np

from megagp.datasets.splits import Array, Seed

TARGET_POINT = np.array([1.0, 1.0, 1.0])


def robot_arm(
    n: int, joints: int = 4, noise_std: float = 0.05, random_state: Seed = 0
) -> tuple[Array, Array]:
    """How far the tip of a jointed arm is from a fixed point, given the joint angles.

    tip = R_1 (l + R_2 (l + ... R_J l)),  l = (1/J, 0, 0),  J = joints
    y   = (|tip - (1, 1, 1)| - a) / b + noise_std * e,  e ~ N(0, 1)

    R_i turns by the angle x_i: about the vertical axis for the first joint, the third and so on,
    about a horizontal one for the others. The point is out of reach, so y is smooth. a and b
    are the mean and standard deviation over fixed poses, the same for every n.
    Returns X, n x joints, uniform on [-pi/2, pi/2], and y, n.
    """
    if n < 1 or joints < 1 or not noise_std >= 0:
        raise ValueError(
            "robot_arm: expected n >= 1, joints >= 1 and noise_std >= 0, "
            f"got {n}, {joints} and {noise_std}"
        )
    rng = np.random.default_rng(random_state)
    X = rng.uniform(-np.pi / 2, np.pi / 2, size=(n, joints))
    poses = np.random.default_rng(0).uniform(-np.pi / 2, np.pi / 2, size=(10_000, joints))
    usual = _distance(poses)
    y = (_distance(X) - usual.mean()) / usual.std()
    return X, y + noise_std * rng.standard_normal(n)


def _distance(X: Array) -> Array:
    """From the tip of the arm to the target point; from the last joint inwards, O(n) memory."""
    joints = X.shape[1]
    x, y, z = np.zeros((3, len(X)))
    for joint in reversed(range(joints)):
        c, s = np.cos(X[:, joint]), np.sin(X[:, joint])
        x = x + 1 / joints
        if joint % 2 == 0:
            x, y = c * x - s * y, s * x + c * y
        else:
            x, z = c * x + s * z, c * z - s * x
    distance: Array = np.linalg.norm(np.stack([x, y, z], axis=1) - TARGET_POINT, axis=1)
    return distance
