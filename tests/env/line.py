"""Environments with Gymnasium's interface and spaces of their own, for the tests: standard library alone."""
import os
import random
import time


class Box:
    """The shape () is a single number, whose bounds are lists all the same."""

    def __init__(self, low, high, shape, dtype="float32"):
        n = shape[0] if shape else 1
        self.low, self.high, self.shape, self.dtype = [low] * n, [high] * n, shape, dtype


class Discrete:
    def __init__(self, n, start=0):
        self.n, self.start = n, start


class MultiDiscrete:
    def __init__(self, nvec, start=None):
        self.nvec = nvec
        if start is not None:
            self.start = start


class MultiBinary:
    def __init__(self, n):
        self.n = n


class Dict:
    def __init__(self, **spaces):
        self.spaces = spaces


class Line:
    """A walk to 5 or -5; the fault happens at step `at`, once if there is a marker file to remember it."""

    def __init__(self, fault="none", at=3, again=0, marker=""):
        self.observation_space = Dict(place=Box(-10, 10, (2,)), time=Box(0, 1000, ()),
                                      kind=Discrete(3))
        self.action_space = Discrete(2, start=1)
        self.fault, self.at, self.again, self.marker = fault, at, again, marker

    def obs(self):
        return {"place": [float(self.x), float(self.t) / 100], "time": float(self.t), "kind": self.kind}

    def reset(self, seed=None):
        r = random.Random(seed)
        self.x, self.t, self.kind = r.choice([-1, 0, 1]), 0, r.randrange(3)
        return self.obs(), {}

    def hit(self):
        if self.fault == "none" or self.t != self.at:
            return False
        if self.again or not self.marker:
            return True
        if os.path.exists(self.marker):
            return False
        open(self.marker, "w").close()
        return True

    def step(self, action):
        assert action in (1, 2), action
        self.t += 1
        self.x += 1 if action == 2 else -1
        if self.hit():
            if self.fault == "raise":
                raise RuntimeError("this environment is broken on purpose")
            if self.fault == "hang":
                time.sleep(1000)
            if self.fault == "die":
                os._exit(7)
            if self.fault == "nan":
                self.x = float("nan")
            if self.fault == "shape":
                return {"place": [0.0] * 3, "kind": 0}, 0.0, False, False, {}
        return self.obs(), float(self.x), abs(self.x) >= 5, self.t >= 20, {}


class Knobs:
    """Several heads and a mask."""

    def __init__(self):
        self.observation_space = Box(0, 255, (4,), "uint8")
        self.action_space = MultiDiscrete([2, 3])

    def reset(self, seed=None):
        self.t = 0
        return [0, 0, 0, 0], {"action_mask": [1, 1, 1, 0, 1]}

    def step(self, action):
        assert list(action)[1] != 1, "forbidden by the mask"
        self.t += 1
        obs = [self.t, int(action[0]), int(action[1]), 255]
        return obs, 1.0, False, self.t >= 10, {"action_mask": [1, 1, 1, 0, 1]}


class Rows:
    """Several heads in rows, which count from a number of their own; what was done is what is seen."""

    def __init__(self, act="heads"):
        heads = MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [-1, 5]])
        self.binary = act == "bits"
        self.action_space = MultiBinary((2, 2)) if self.binary else heads
        self.observation_space = Dict(heads=heads, bits=MultiBinary((2, 2)), flags=MultiBinary(3))

    def obs(self, action=None):
        heads, bits = [[1, 0], [-1, 5]], [[0, 1], [1, 0]]
        if action is not None:
            action = [[int(x) for x in row] for row in action]
            heads, bits = (heads, action) if self.binary else (action, bits)
        return {"heads": heads, "bits": bits, "flags": [1, 0, 1]}

    def reset(self, seed=None):
        self.t, self.most = 0, 0
        return self.obs(), {}

    def step(self, action):
        assert len(action) == 2 and len(action[0]) == 2, action
        least, most = ((0, 0), (0, 0)), ((1, 1), (1, 1))
        if not self.binary:
            least, most = ((1, 0), (-1, 5)), ((2, 2), (2, 6))
        for row, low, high in zip(action, least, most):
            assert all(a <= x <= b for a, x, b in zip(low, row, high)), action
        self.t += 1
        return self.obs(action), 1.0, False, self.t >= 6, {}


class Square:
    """Continuous actions and a picture."""

    def __init__(self):
        self.observation_space = Box(-1, 1, (1,))
        self.action_space = Box(-2, 2, (2,))

    def reset(self, seed=None):
        self.t = 0
        return [0.5], {}

    def step(self, action):
        self.t += 1
        return [0.5], -float(action[0]) ** 2, False, self.t >= 5, {}

    def render(self):
        return [[[255, self.t, 0] for _ in range(4)] for _ in range(3)]


class Nested(Square):
    """A key that is named as an observation without keys is."""

    def __init__(self):
        self.observation_space = Dict(obs=Dict(a=Box(-1, 1, (2,))), a=Box(-1, 1, (1,)))
        self.action_space = Box(-2, 2, (2,))

    def reset(self, seed=None):
        self.t = 0
        return {"obs": {"a": [0.0, 0.5]}, "a": [0.5]}, {}

    def step(self, action):
        self.t += 1
        return {"obs": {"a": [0.0, 0.5]}, "a": [0.5]}, 1.0, False, self.t >= 5, {}


class Closes(Square):
    """Leaves a file when it is closed."""

    def __init__(self, marker):
        super().__init__()
        self.marker = marker

    def close(self):
        open(self.marker, "w").close()


class SeedError(Square):
    """A mistake inside reset() that has to do with the seed."""

    def reset(self, seed=None):
        return super().reset(None if seed is None else seed + "1")


class NoSeed(Square):
    """As older environments are."""

    def reset(self):
        return super().reset()


class HighAction(Square):
    """Actions with one bound, or without any."""

    def __init__(self):
        super().__init__()
        self.action_space.low, self.action_space.high = [5.0, -float("inf")], [float("inf")] * 2

    def step(self, action):
        assert 5 <= action[0] <= 7 and -1 <= action[1] <= 1, action
        return super().step(action)
