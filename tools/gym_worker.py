#!/usr/bin/env python3
"""Environments with Gymnasium's interface, served to Brim over shared memory (protocol: src/env/remote.h).

    gym_worker.py ID N [key=value ...]

ID is an id that gymnasium.make() knows, MODULE:NAME, or FILE.py:NAME; NAME is a class or a function that
returns an environment. key=value become keyword arguments. Needs the standard library alone; numpy is used if
it is there. Spaces are read by their attributes, so they need not be Gymnasium's own.
"""
import difflib
import functools
import importlib
import importlib.util
import inspect
import json
import math
import mmap
import os
import struct
import sys
import traceback

REPLY, MEMORY = 3, 4
ONE_HOT_MOST = 4096
PACK = {"f32": ("f", 4), "u8": ("B", 1), "i8": ("b", 1), "i32": ("i", 4)}
TERMINATED, TRUNCATED = 1, 2

try:
    import numpy as np
except ImportError:
    np = None


class Hopeless(Exception):
    """The environment is not what it said it was: starting it again would not help."""


def reply(kind, data=b""):
    frame = kind + struct.pack("<I", len(data)) + data
    while frame:
        frame = frame[os.write(REPLY, frame):]


def maker(name):
    """The function that makes the environment which the name means."""
    module, _, attr = name.rpartition(":")
    if attr.endswith(".py"):
        raise SystemExit(f"which class of the file? gym:{name}:CLASS names one")
    if not module:
        try:
            gym = importlib.import_module("gymnasium")
        except ImportError:
            raise SystemExit("gymnasium is not installed (gym:FILE.py:Class needs none)")
        return functools.partial(gym.make, name)
    if module.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(module)))
        spec = importlib.util.spec_from_file_location("brim_user_env", module)
        if spec is None or not os.path.exists(module):
            raise SystemExit(f"{module}: no such file")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules["brim_user_env"] = loaded
        spec.loader.exec_module(loaded)
    else:
        sys.path.insert(0, os.getcwd())
        loaded = importlib.import_module(module)
    if not hasattr(loaded, attr):
        near = difflib.get_close_matches(attr, vars(loaded), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise SystemExit(f"{module}: there is no {attr} in it{hint}")
    return getattr(loaded, attr)


def complaint():
    """The traceback of the pending exception without the frames of this file. The last line ends with the
    place, because it stands alone where Brim repeats the error."""
    kind, error, tb = sys.exc_info()
    frames = [f for f in traceback.extract_tb(tb)
              if f.filename != __file__ and not f.filename.startswith("<frozen")]
    lines = traceback.format_exception_only(kind, error)
    place = (frames[-1].filename, frames[-1].lineno) if frames else None
    if isinstance(error, SyntaxError) and error.filename:
        place = (error.filename, error.lineno)
    if place:
        lines[-1] = f"{lines[-1].rstrip()} ({os.path.basename(place[0])}:{place[1]})\n"
    if frames:
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames), *lines]
    return "".join(lines)


def flat(x):
    """All numbers of an array or of nested lists, in order."""
    if hasattr(x, "ravel"):
        x = x.ravel()
        return x.tolist() if hasattr(x, "tolist") else list(x)
    if isinstance(x, (list, tuple)):
        return [v for item in x for v in flat(item)]
    return [x]


def shape_of(x):
    if hasattr(x, "shape"):
        return list(x.shape)
    shape = []
    while isinstance(x, (list, tuple)):
        shape.append(len(x))
        x = x[0] if x else None
    return shape


def is_box(space):
    return hasattr(space, "low") and hasattr(space, "high")


def box_type(space):
    """Brim's type for a box's dtype."""
    name = str(getattr(getattr(space, "dtype", None), "name", getattr(space, "dtype", "float32")))
    if "uint8" in name or "bool" in name:
        return "u8"
    if "int8" in name:
        return "i8"
    return "i32" if "int" in name else "f32"


def shape_in(space, otherwise):
    """The shape that a space names, which may be () for a single number, or another one."""
    shape = getattr(space, "shape", None)
    return list(otherwise() if shape is None else shape)


def multi_of(space):
    """Shape, choices and first values of a MultiDiscrete or MultiBinary space; None if it is neither."""
    if hasattr(space, "nvec"):
        shape = shape_in(space, lambda: shape_of(space.nvec))
        choices = [int(x) for x in flat(space.nvec)]
    elif type(space).__name__ == "MultiBinary":
        shape = shape_in(space, lambda: flat(space.n))
        choices = [2] * math.prod(shape)
    else:
        return None
    start = getattr(space, "start", None)
    return shape, choices, [0] * len(choices) if start is None else [int(x) for x in flat(start)]


def shaped(x, shape, dtype):
    """A flat list as an array of this shape, or as lists in lists where numpy is not there."""
    if np is not None:
        return np.array(x, dtype=dtype).reshape(shape)
    for n in reversed(shape[1:]):
        x = [x[i:i + n] for i in range(0, len(x), n)]
    return x


def finite(x):
    """JSON has no infinity; null means unbounded."""
    return x if math.isfinite(x) else None


class Block:
    """One part of the observation: a box, or a discrete space as one-hot numbers."""

    def __init__(self, name, space):
        self.name, self.space, self.one_hot = name, space, None
        multi = multi_of(space)
        if is_box(space):
            self.space_shape = shape_in(space, lambda: shape_of(space.low))
            self.shape = self.space_shape or [1]
            self.type = box_type(space)
            self.low, self.high = finite(min(flat(space.low))), finite(max(flat(space.high)))
        elif multi:
            self.space_shape, choices, start = multi
            self.shape, self.type = self.space_shape, "i32"
            self.low, self.high = min(start), max(s + n - 1 for s, n in zip(start, choices))
        elif hasattr(space, "n"):
            if int(space.n) > ONE_HOT_MOST:
                raise SystemExit(f"observation {name}: {space.n} values are more than {ONE_HOT_MOST}")
            self.one_hot, self.start = int(space.n), int(getattr(space, "start", 0))
            self.shape, self.type, self.low, self.high = [self.one_hot], "f32", 0, 1
        else:
            raise SystemExit(f"observation {name}: a space of type {type(space).__name__} is not known")
        if len(self.shape) > 4:
            raise SystemExit(f"observation {name}: {len(self.shape)} dimensions are more than 4")
        self.count = math.prod(self.shape)
        self.code, size = PACK[self.type]
        self.bytes = self.count * size
        self.dtype = np and {"f32": np.float32, "u8": np.uint8, "i8": np.int8, "i32": np.int32}[self.type]

    def spec(self):
        scale = 1 / 255 if self.type == "u8" and self.high == 255 else 1
        return {"name": self.name, "type": self.type, "shape": self.shape, "low": self.low, "high": self.high,
                "scale": scale}

    def fits(self, x):
        """numpy would keep the lowest bits without a word."""
        most = np.iinfo(self.dtype)
        return x.size == 0 or most.min <= x.min() and x.max() <= most.max

    def pack(self, value):
        if self.one_hot is not None:
            k = int(value) - self.start
            if not 0 <= k < self.one_hot:
                raise ValueError(f"observation {self.name} is {value}, outside its space")
            return struct.pack(f"{self.one_hot}f", *(1.0 if i == k else 0.0 for i in range(self.one_hot)))
        shape = shape_of(value)
        if shape != self.space_shape:
            raise Hopeless(f"observation {self.name} has shape {shape}, but its space has {self.space_shape}")
        if np is not None:
            x = np.asarray(value)
            if self.type != "f32" and x.dtype != self.dtype and not self.fits(x):
                raise ValueError(f"observation {self.name} has a value that does not fit into {self.type}")
            return np.ascontiguousarray(x, dtype=self.dtype).tobytes()
        numbers = flat(value) if self.type == "f32" else map(int, flat(value))
        return struct.pack(f"{self.count}{self.code}", *numbers)


def blocks_of(space, name=None):
    """(path, block) for every leaf; a path says how to get there from the observation."""
    inner = getattr(space, "spaces", None)
    if inner is None:
        return [((), Block(name or "obs", space))]
    items = inner.items() if hasattr(inner, "items") else enumerate(inner)
    out = []
    for key, sub in items:
        label = str(key) if name is None else f"{name}.{key}"
        out += [((key,) + path, block) for path, block in blocks_of(sub, label)]
    return out


def action_range(low, high):
    """Brim's actions have a range. Without bounds it is -1 to 1; from one bound it is 2 wide."""
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    if math.isfinite(low):
        return low, low + 2
    return (high - 2, high) if math.isfinite(high) else (-1.0, 1.0)


class Actions:
    """Brim's numbers into what the environment's action space wants."""

    def __init__(self, space):
        self.space = space
        self.box, self.multi = is_box(space), multi_of(space)
        if self.box:
            self.shape = shape_in(space, lambda: shape_of(space.low))
            self.low, self.high = zip(*map(action_range, flat(space.low), flat(space.high)))
            self.count = len(self.low)
            self.part = {"low": self.low, "high": self.high}
        elif self.multi:
            self.shape, self.choices, self.start = self.multi
            self.count, self.part = len(self.choices), {"choices": self.choices}
        elif hasattr(space, "n"):
            self.choices, self.start = [int(space.n)], int(getattr(space, "start", 0))
            self.count, self.part = 1, {"choices": self.choices}
        else:
            raise SystemExit(f"an action space of type {type(space).__name__} is not known")
        self.format = f"{self.count}{'f' if self.box else 'i'}"

    def unpack(self, memory, at):
        x = struct.unpack_from(self.format, memory, at)
        if self.box:
            return shaped(list(x), self.shape, getattr(self.space, "dtype", "float32"))
        if self.multi:
            x = [s + k for s, k in zip(self.start, x)]
            return shaped(x, self.shape, getattr(self.space, "dtype", "int64"))
        return x[0] + self.start


def takes_seed(reset):
    """Older environments have a reset() without a seed."""
    try:
        given = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "seed" or p.kind == p.VAR_KEYWORD for p in given)


def reset_env(env, seed):
    result = env.reset(seed=seed) if takes_seed(env.reset) else env.reset()
    return result if isinstance(result, tuple) and len(result) == 2 else (result, {})


class Server:
    def __init__(self, name, n, kwargs):
        make = maker(name)
        self.envs = [make(**kwargs) for _ in range(n)]
        env = self.envs[0]
        self.blocks = blocks_of(env.observation_space)
        self.actions = Actions(env.action_space)
        first, info = reset_env(env, 0)
        for path, block in self.blocks:
            block.pack(self.leaf(first, path))
        self.mask = not self.actions.box and isinstance(info, dict) and "action_mask" in info
        known = getattr(env, "spec", None)
        self.spec = {
            "name": name,
            "obs": [block.spec() for _, block in self.blocks],
            "mask": self.mask,
            "max_steps": getattr(known, "max_episode_steps", None) or 0,
            **self.actions.part,
        }
        solved = getattr(known, "reward_threshold", None)
        if solved is not None:
            self.spec["solved_at"] = float(solved)

    @staticmethod
    def leaf(obs, path):
        for key in path:
            obs = obs[key]
        return obs

    def attach(self, layout):
        self.at = layout
        self.memory = mmap.mmap(MEMORY, layout["bytes"])

    def put(self, i, obs, info):
        for (path, block), at in zip(self.blocks, self.at["obs"]):
            at += i * block.bytes
            self.memory[at:at + block.bytes] = block.pack(self.leaf(obs, path))
        if self.mask:
            mask = bytes(1 if x else 0 for x in flat(info["action_mask"]))
            n = sum(self.actions.choices)
            if len(mask) != n:
                raise ValueError(f"action_mask has {len(mask)} values, but there are {n} choices")
            self.memory[self.at["mask"] + i * n:self.at["mask"] + (i + 1) * n] = mask

    def now_at(self, i):
        struct.pack_into("<i", self.memory, self.at["current"], i)

    def step(self):
        for i, env in enumerate(self.envs):
            self.now_at(i)
            action = self.actions.unpack(self.memory, self.at["act"] + i * self.actions.count * 4)
            result = env.step(action)
            if not isinstance(result, tuple) or len(result) != 5:
                n = len(result) if isinstance(result, tuple) else 1
                raise Hopeless(f"step() returned {n} value{'s' if n > 1 else ''} instead of 5: "
                               "observation, reward, terminated, truncated, info")
            obs, reward, terminated, truncated, info = result
            self.put(i, obs, info)
            struct.pack_into("<f", self.memory, self.at["reward"] + 4 * i, float(reward))
            bits = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            self.memory[self.at["end"] + i] = bits
        reply(b"k")

    def reset(self):
        for i, env in enumerate(self.envs):
            if not self.memory[self.at["which"] + i]:
                continue
            self.now_at(i)
            (seed,) = struct.unpack_from("<Q", self.memory, self.at["seed"] + 8 * i)
            self.put(i, *reset_env(env, seed % 2**31))  # numpy's old generators take 32 bits
        reply(b"k")

    def picture(self):
        i = next(k for k in range(len(self.envs)) if self.memory[self.at["which"] + k])
        rgb = self.envs[i].render() if hasattr(self.envs[i], "render") else None
        shape = shape_of(rgb)
        if len(shape) != 3 or shape[2] != 3:
            reply(b"e", b"render() gives no RGB picture (try render_mode=rgb_array)")
            return
        data = rgb.astype("uint8").tobytes() if hasattr(rgb, "astype") else bytes(flat(rgb))
        reply(b"p", struct.pack("<II", shape[1], shape[0]) + data)

    def close(self):
        for env in self.envs:
            if hasattr(env, "close"):
                env.close()

    def serve(self):
        act = {b"S": self.step, b"R": self.reset, b"P": self.picture}
        while True:
            c = os.read(0, 1)
            if c in (b"", b"Q"):
                return
            act[c]()


def value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_line():
    line = b""
    while not line.endswith(b"\n"):
        c = os.read(0, 1)
        if not c:
            raise SystemExit(0)
        line += c
    return line


def main():
    try:
        kwargs = {k: value(v) for k, _, v in (a.partition("=") for a in sys.argv[3:])}
        server = Server(sys.argv[1], int(sys.argv[2]), kwargs)
        reply(b"s", json.dumps(server.spec).encode())
        server.attach(json.loads(read_line()))
        server.serve()
        server.close()
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    except SystemExit as e:
        if e.code:
            reply(b"e", str(e.code).encode())
    except Hopeless as e:
        reply(b"f", str(e).encode())
        sys.exit(1)
    except BaseException:
        reply(b"e", complaint().encode())
        sys.exit(1)


main()
