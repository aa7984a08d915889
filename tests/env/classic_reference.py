#!/usr/bin/env python3
"""Writes tests/golden/env_classic.txt: single steps of the classic environments, computed here from the
published formulas (Gymnasium's classic_control) in Python's own floats. Run it from the project's folder.

A line: name, action, state before, "->", state after, reward, terminated. Numbers are hexadecimal: exact.
"""
import math
import random
import struct


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def cartpole(s, a):
    x, v, th, w = s
    force = 10.0 if a == 1 else -10.0
    c, sn = math.cos(th), math.sin(th)
    temp = (force + 0.05 * w**2 * sn) / 1.1
    acc = (9.8 * sn - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c**2 / 1.1))
    xacc = temp - 0.05 * acc * c / 1.1
    x, v, th, w = x + 0.02 * v, v + 0.02 * xacc, th + 0.02 * w, w + 0.02 * acc
    lim = 12 * 2 * math.pi / 360
    return (x, v, th, w), 1.0, x < -2.4 or x > 2.4 or th < -lim or th > lim


def acrobot(s, a):
    torque = [-1.0, 0.0, 1.0][a]
    m1 = m2 = l1 = i1 = i2 = 1.0
    lc1 = lc2 = 0.5
    g = 9.8

    def dsdt(y):
        t1, t2, d1t, d2t = y
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * math.cos(t2)) + i1 + i2
        d2 = m2 * (lc2**2 + l1 * lc2 * math.cos(t2)) + i2
        phi2 = m2 * lc2 * g * math.cos(t1 + t2 - math.pi / 2.0)
        phi1 = (-m2 * l1 * lc2 * d2t**2 * math.sin(t2) - 2 * m2 * l1 * lc2 * d2t * d1t * math.sin(t2)
                + (m1 * lc1 + m2 * l1) * g * math.cos(t1 - math.pi / 2) + phi2)
        dd2 = ((torque + d2 / d1 * phi1 - m2 * l1 * lc2 * d1t**2 * math.sin(t2) - phi2)
               / (m2 * lc2**2 + i2 - d2**2 / d1))
        return d1t, d2t, -(d2 * dd2 + phi1) / d1, dd2

    def along(y, h, k):
        return [p + h * q for p, q in zip(y, k)]

    k1 = dsdt(s)
    k2 = dsdt(along(s, 0.1, k1))
    k3 = dsdt(along(s, 0.1, k2))
    k4 = dsdt(along(s, 0.2, k3))
    n = [y + 0.2 / 6.0 * (p + 2 * q + 2 * r + t) for y, p, q, r, t in zip(s, k1, k2, k3, k4)]
    for i in range(2):
        while n[i] > math.pi:
            n[i] -= 2 * math.pi
        while n[i] < -math.pi:
            n[i] += 2 * math.pi
    n[2] = min(max(n[2], -4 * math.pi), 4 * math.pi)
    n[3] = min(max(n[3], -9 * math.pi), 9 * math.pi)
    done = -math.cos(n[0]) - math.cos(n[1] + n[0]) > 1.0
    return tuple(n), 0.0 if done else -1.0, done


def mountaincar(s, a):
    p, v = s
    v += (a - 1) * 0.001 + math.cos(3 * p) * (-0.0025)
    v = min(max(v, -0.07), 0.07)
    p = min(max(p + v, -1.2), 0.6)
    if p == -1.2 and v < 0:
        v = 0.0
    return (p, v), -1.0, p >= 0.5 and v >= 0


def mountaincarc(s, a):
    p, v = s
    v += min(max(a, -1.0), 1.0) * 0.0015 - 0.0025 * math.cos(3 * p)
    v = min(max(v, -0.07), 0.07)
    p = min(max(p + v, -1.2), 0.6)
    if p == -1.2 and v < 0:
        v = 0.0
    done = p >= 0.45 and v >= 0
    return (f32(p), f32(v)), (100.0 if done else 0.0) - math.pow(a, 2) * 0.1, done


def pendulum(s, a):
    th, w = s
    u = min(max(a, -2.0), 2.0)
    cost = (((th + math.pi) % (2 * math.pi)) - math.pi) ** 2 + 0.1 * w**2 + 0.001 * u**2
    w = min(max(w + (3 * 10.0 / 2 * math.sin(th) + 3.0 * u) * 0.05, -8), 8)
    return (th + w * 0.05, float(w)), -cost, False


def main():
    r = random.Random(20240101)
    u = r.uniform

    def place():  # a third each at the wall, at the goal, anywhere
        return r.choice([lambda: u(-1.2, -1.15), lambda: u(0.4, 0.55), lambda: u(-1.2, 0.6)])()

    rows = {
        "cartpole": (cartpole, lambda: (u(-2.41, 2.41), u(-3, 3), u(-0.22, 0.22), u(-3, 3)),
                     lambda: r.randrange(2)),
        "acrobot": (acrobot, lambda: (u(-3.14, 3.14), u(-3.14, 3.14), u(-12, 12), u(-28, 28)),
                    lambda: r.randrange(3)),
        "mountaincar": (mountaincar, lambda: (place(), u(-0.07, 0.07)), lambda: r.randrange(3)),
        "mountaincar-continuous": (mountaincarc, lambda: (f32(place()), f32(u(-0.07, 0.07))),
                                   lambda: f32(u(-1.5, 1.5))),
        "pendulum": (pendulum, lambda: (u(-20, 20), u(-8, 8)), lambda: f32(u(-3, 3))),
    }
    with open("tests/golden/env_classic.txt", "w") as out:
        for name, (step, state, act) in rows.items():
            for _ in range(60):
                s, a = state(), act()
                n, reward, done = step(s, a)
                before, after = [x.hex() for x in s], [x.hex() for x in n]
                print(name, float(a).hex(), *before, "->", *after, float(reward).hex(), int(done), file=out)


main()
