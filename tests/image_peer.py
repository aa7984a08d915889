#!/usr/bin/env python3
"""Compares Brim's image code with Pillow's. Prints "ok NAME: ..." or "not ok NAME: ...".

image_peer.py VERIFY decode FOLDER [N]    N images of a folder: full decode, crops, scaled crops, resize
                                          and centre crop
image_peer.py VERIFY ops FILE             every op of RandAugment and colour jitter
image_peer.py VERIFY damaged FOLDER N     N damaged images made from those of the folder: Brim and Pillow read
                                          an image alike, or Brim skips it
VERIFY is build/tests/verify_images. Only Pillow is needed.
"""
import io, os, random, subprocess, sys, tempfile, warnings, zlib, struct
from PIL import Image, ImageChops, ImageEnhance, ImageOps, ImageStat

warnings.simplefilter("ignore")
verify = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
failed = 0


def verdict(name, good, text):
    global failed
    failed |= not good
    print(("ok " if good else "not ok ") + name + ": " + text, flush=True)


def ask(order):
    """An image, or the reason as text."""
    verify.stdin.write(order.encode() + b"\n")
    verify.stdin.flush()
    word = verify.stdout.readline().decode().split(" ", 1)
    if not word[0]:
        raise SystemExit("not ok verify_images: died at: " + order)
    if word[0] != "ok":
        return word[1].strip()
    w, h = map(int, word[1].split()[2:])
    data = b""
    while len(data) < w * h * 3:
        data += verify.stdout.read(w * h * 3 - len(data))
    return Image.frombytes("RGB", (w, h), data)


def decode(path, full=1, bicubic=0, size=(0, 0), box=(0, 0, 0, 0), limits=None):
    limits = limits or tuple(int(b) for b in box)
    return ask("decode %d %d %d %d %r %r %r %r %d %d %d %d %s"
        % ((full, bicubic) + tuple(size) + tuple(map(float, box)) + limits + (path,)))


def difference(a, b):
    """Mean over pixels and channels."""
    if a.size != b.size:
        return 999.0
    return sum(ImageStat.Stat(ImageChops.difference(a, b)).mean) / 3


def largest(a, b):
    return max(hi for lo, hi in ImageChops.difference(a, b).getextrema())


def images(folder):
    found = []
    for root, dirs, files in os.walk(folder):
        found += [os.path.join(root, f) for f in files if f.lower().endswith((".jpg", ".jpeg", ".png"))]
    return sorted(found)


def compare_decode(folder, most):
    rng = random.Random(1)
    paths = images(folder)
    rng.shuffle(paths)
    full, crop, center, scaled, shrunk = [], [], [], [], 0
    for path in paths:
        if len(full) == most:
            break
        pil = Image.open(path)
        if pil.mode.startswith("I") or pil.width * pil.height > 3e6 or min(pil.size) < 16:
            continue
        pil = pil.convert("RGB")
        full.append(difference(pil, decode(path)))
        w, h = (rng.randint(side // 3, side) for side in pil.size)
        x, y = rng.randint(0, pil.width - w), rng.randint(0, pil.height - h)
        box = (x, y, x + w, y + h)
        for bicubic, method in (0, Image.BILINEAR), (1, Image.BICUBIC):
            want = pil.crop(box).resize((112, 96), method)
            crop.append(difference(want, decode(path, 1, bicubic, (112, 96), box)))
        if w >= 336 and h >= 288 and path.lower().endswith(("jpg", "jpeg")):
            scaled.append(difference(pil.crop(box).resize((112, 96), Image.BILINEAR),
                decode(path, 0, 0, (112, 96), box)))
        less = min(pil.size)
        rw, rh = (128 * side // less for side in pil.size)
        x, y = round((rw - 112) / 2), round((rh - 112) / 2)
        want = pil.resize((rw, rh), Image.BILINEAR).crop((x, y, x + 112, y + 112))
        sx, sy = pil.width / rw, pil.height / rh
        got = decode(path, 1, 0, (112, 112), (x * sx, y * sy, (x + 112) * sx, (y + 112) * sy), (0, 0)
            + pil.size)
        center.append(difference(want, got))
    if len(full) < 10 or len(scaled) < 3:
        return verdict("images to compare", False, "%d, %d large JPEGs" % (len(full), len(scaled)))
    verdict("full decode is Pillow's", max(full) < 0.5,
            "%d images, largest mean difference %.4f of 255" % (len(full), max(full)))
    verdict("crop and resize are Pillow's", max(crop) < 0.5, "largest mean difference %.4f" % max(crop))
    verdict("resize and centre crop are Pillow's", max(center) < 0.5,
            "largest mean difference %.4f" % max(center))
    verdict("scaled decode is near Pillow's", max(scaled) < 2.5 and max(scaled) > 0,
        "%d JPEGs, mean %.3f, largest %.3f" % (len(scaled), sum(scaled) / len(scaled), max(scaled)))


def hue(image, shift):
    h, s, v = image.convert("HSV").split()
    h = h.point([(i + int(shift * 255)) % 256 for i in range(256)])
    return Image.merge("HSV", (h, s, v)).convert("RGB")


def compare_ops(path):
    image = Image.open(path).convert("RGB")
    cases = [("flip", 0, lambda v: ImageOps.mirror(image)),
             ("autocontrast", 0, lambda v: ImageOps.autocontrast(image)),
             ("equalize", 0, lambda v: ImageOps.equalize(image))]
    for v in 0.1, 0.5, 1.3, 1.9:
        for name, enhance in (("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast),
                              ("saturation", ImageEnhance.Color), ("sharpness", ImageEnhance.Sharpness)):
            cases.append((name, v, lambda v, enhance=enhance: enhance(image).enhance(v)))
    cases += [("hue", v, lambda v: hue(image, v)) for v in (-0.5, -0.1, 0.03, 0.4)]
    cases += [("posterize", v, lambda v: ImageOps.posterize(image, v)) for v in (4, 6, 8)]
    cases += [("solarize", v, lambda v: ImageOps.solarize(image, v)) for v in (60, 178.5, 255)]
    cases += [("rotate", v, lambda v: image.rotate(v)) for v in (-30, 9, 17.5)]
    cases += [("shear", v, lambda v: image.transform(image.size, Image.AFFINE, (1, v, 0, 0, 1, 0)))
        for v in (-0.3, 0.09)]
    for name, v, want in cases:
        got, want = ask("op %s %r %s" % (name, float(v), path)), want(v)
        # A rotation's matrix is rounded elsewhere in Pillow: single pixels on the border between two may go
        # the other way.
        good = difference(want, got) < (0.05 if name == "rotate" else 0.01)
        verdict("op %s %g is Pillow's" % (name, v), good, "mean difference %.5f, largest %d"
            % (difference(want, got), largest(want, got)))


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(w, h):
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0))
    data = png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + head + data + png_chunk(b"IEND", b"")


def jpeg_bomb(data, w, h):
    """The same JPEG with another size in its frame header."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xC3:
            return data[:at + 5] + struct.pack(">HH", h, w) + data[at + 9:]
        at += 2 + struct.unpack(">H", data[at + 2:at + 4])[0]
    return data


def saved(image, kind, **how):
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def special(rng, pil):
    """Odd but mostly sound images, and files that are none."""
    small = pil.resize((rng.randint(1, 90), rng.randint(1, 90)))
    exif = Image.Exif()
    exif[0x0112] = rng.randint(2, 8)
    grey16 = Image.frombytes("I;16", (16, 16), bytes(rng.randrange(256) for i in range(512)))
    # convert() leaves black at 0, where a decoder that forgets black is right by chance.
    ink = small.convert("CMYK").split()[:3] + (small.convert("L").point(lambda v: (255 - v) // 2),)
    frames = [small.rotate(a) for a in (0, 90, 180)]
    return [
        ("1x1", saved(small.resize((1, 1)), rng.choice(["JPEG", "PNG"]))),
        ("bomb", rng.choice([bomb(30000, 30000), jpeg_bomb(saved(small, "JPEG"), 30000, 30000)])),
        ("CMYK", saved(Image.merge("CMYK", ink), "JPEG", quality=95)),
        ("grey", saved(small.convert("L"), rng.choice(["JPEG", "PNG"]))),
        ("16 bit", saved(grey16, "PNG")),
        ("palette", saved(small.quantize(rng.choice([2, 4, 16, 256])), "PNG")),
        ("alpha", saved(small.convert(rng.choice(["RGBA", "LA"])), "PNG")),
        ("one bit", saved(small.convert("1"), "PNG")),
        ("animated", saved(frames[0], rng.choice(["GIF", "PNG", "WEBP"]), save_all=True,
            append_images=frames[1:])),
        ("EXIF", saved(small, "JPEG", exif=exif)),
        ("progressive", saved(small, "JPEG", progressive=True)),
        ("subsampling", saved(small, "JPEG", subsampling=rng.choice([0, 1, 2]), quality=rng.randint(5, 100))),
        ("text", b"This is a text file.\n" * rng.randint(1, 9)),
        ("empty", b""),
    ]


def damage(rng, data):
    data = bytearray(data)
    if rng.random() < 0.4:
        return "truncated", bytes(data[:rng.randrange(len(data) + 1)])
    for i in range(rng.choice([1, 1, 2, 5, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return "flipped bytes", bytes(data)


def pillow(data, expect16):
    """What convert("RGB") gives, or None where Pillow refuses."""
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
        if image.mode.startswith("I"):
            return expect16 and Image.frombytes("L", image.size,
                bytes(min(v >> 8, 255) for v in image.getdata())).convert("RGB")
        return image.convert("RGB")
    except Exception:
        return None


def keep(name, data):
    """Images that the two disagree about, for people: in the folder that KEEP names."""
    if os.environ.get("KEEP"):
        with open(os.path.join(os.environ["KEEP"], name), "wb") as f:
            f.write(data)


def compare_damaged(folder, n):
    rng = random.Random(7)
    Image.MAX_IMAGE_PIXELS = 89478485
    sources = []
    for path in images(folder):
        pil = Image.open(path)
        fits = 32 <= min(pil.size) and max(pil.size) <= 1200 and os.path.getsize(path) < 200000
        if not pil.mode.startswith("I") and fits:
            sources.append(path)
    rng.shuffle(sources)
    kinds, wrong, done, both, skipped, beyond = {}, [], 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "image.jpg")
        while done < n:
            source = sources[done % min(len(sources), 60)]
            data = open(source, "rb").read()
            pil = Image.open(source).convert("RGB")
            todo = special(rng, pil) if done % 5 == 0 else []
            todo += [damage(rng, data)] + [damage(rng, d) for k, d in special(rng, pil)[:1] if d]
            for kind, data in todo:
                done += 1
                with open(path, "wb") as f:
                    f.write(data)
                got, want = decode(path), pillow(data, kind == "16 bit")
                kinds[kind] = kinds.get(kind, 0) + 1
                if isinstance(got, str):
                    skipped += 1
                    # A sound image must not be skipped, but for formats that Brim does not read.
                    broken = ("truncated", "flipped bytes", "bomb", "text", "empty")
                    if kind not in broken and "is not read" not in got:
                        wrong.append("%s: skipped: %s" % (kind, got))
                    if not got:
                        wrong.append(kind + ": skipped without a reason")
                elif want is None:
                    beyond += 1
                    keep("beyond-%d" % done, data)
                    if kind not in ("truncated", "flipped bytes"):
                        wrong.append(kind + ": decoded, and Pillow refuses")
                else:
                    both += 1
                    if want and difference(want, got) >= 0.5:
                        keep("differs-%d" % done, data)
                        wrong.append("%s: differs by %.2f" % (kind, difference(want, got)))
    counts = (done, both, skipped, beyond)
    text = "%d images: %d as Pillow, %d skipped, %d decoded that Pillow refuses" % counts
    # Who skips everything is never wrong: most are still images for Pillow, and so they are for Brim.
    good = not wrong and beyond <= done // 1000 and both > done // 2
    verdict("damaged images are decoded as Pillow does, or skipped", good,
        text + "; " + "; ".join(sorted(set(wrong))[:10]))
    verdict("every kind of damage was tried", len(kinds) == 16, str(kinds))


if sys.argv[2] == "decode":
    compare_decode(sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 100)
elif sys.argv[2] == "ops":
    compare_ops(sys.argv[3])
else:
    compare_damaged(sys.argv[3], int(sys.argv[4]))
verify.stdin.close()
if verify.wait() != 0:
    verdict("verify_images", False, "exit code %d" % verify.returncode)
sys.exit(failed)
