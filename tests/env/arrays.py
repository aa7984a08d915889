"""An environment with numpy arrays, as in Gymnasium: a picture and a double in a Dict; a box of actions."""
import numpy as np


class Box:
    def __init__(self, low, high, shape, dtype):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Dict:
    def __init__(self, spaces):
        self.spaces = spaces


class Arrays:
    def __init__(self, size=8):
        self.size = size
        self.observation_space = Dict({"image": Box(0, 255, (size, size, 3), np.uint8),
                                       "speed": Box(-np.inf, np.inf, (), np.float64)})
        self.action_space = Box(-1, 1, (2, 2), np.float32)

    def obs(self):
        image = np.zeros((self.size, self.size, 3), np.uint8)
        image[self.t % self.size, :, 1] = 255
        return {"image": image, "speed": np.float64(self.speed)}

    def reset(self, *, seed=None, options=None):
        self.t, self.speed = 0, np.random.default_rng(seed).normal()
        return self.obs(), {}

    def step(self, action):
        assert action.shape == (2, 2) and action.dtype == np.float32
        self.t += 1
        self.speed += float(action.sum())
        return self.obs(), np.float64(-abs(self.speed)), np.bool_(False), np.bool_(self.t >= 9), {}

    def render(self):
        return self.obs()["image"]


class Counts(Arrays):
    """Whole numbers of 64 bits; beyond 32 bits they do not fit."""

    def __init__(self, most=1000):
        super().__init__()
        self.most = most
        self.observation_space = Box(0, 2**40, (2,), np.int64)

    def obs(self):
        return np.array([self.t, self.most if self.t == 3 else 0])
