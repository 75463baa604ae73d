"""Draws cartoon faces from their parameters: smooth shapes, a batch at a time, from back to front.

A shape is known by the distance to its border, positive inside and exact to first order; the pixels
that the border crosses blend, so nothing is jagged. Lengths are in units of the face's half height.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leakscope.data.face_canvas import Look, Window

_SKIN = torch.tensor(
    [[0.98, 0.86, 0.77], [0.92, 0.73, 0.58], [0.77, 0.55, 0.39], [0.54, 0.36, 0.25], [0.36, 0.23, 0.17]]
)
_HAIR = torch.tensor(
    [[0.09, 0.07, 0.08], [0.27, 0.15, 0.09], [0.48, 0.28, 0.14], [0.68, 0.26, 0.1], [0.9, 0.73, 0.38], [0.7, 0.7, 0.73]]
)
_EYES = torch.tensor([[0.2, 0.12, 0.07], [0.42, 0.26, 0.1], [0.3, 0.52, 0.25], [0.18, 0.42, 0.75], [0.5, 0.56, 0.6]])
_FRAMES = torch.tensor([[0.07, 0.07, 0.1], [0.55, 0.1, 0.12], [0.75, 0.6, 0.25], [0.12, 0.25, 0.55]])


def _tint(red: float, green: float, blue: float) -> Tensor:
    return torch.tensor([red, green, blue]).view(1, 3, 1, 1)


_WHITE, _PUPIL, _MOUTH, _ROSE = (
    _tint(*colour) for colour in ((0.97, 0.96, 0.95), (0.04, 0.03, 0.04), (0.3, 0.05, 0.07), (0.8, 0.3, 0.32))
)


def draw(look: Look, pixels: Tensor, reach: Mapping[str, tuple[float, float]]) -> None:
    """Fill `pixels`, B×3×size×size, with one picture for each row of `look`, in [0, 1].

    `reach` holds the range of each parameter of the pose: features are drawn only where they can be.
    """
    size = pixels.shape[-1]
    axis = (torch.arange(size) + 0.5) * (2 / size) - 1
    u, v = axis.view(1, 1, -1), axis.view(1, -1, 1)
    _background(look, pixels, u, v)
    across, down = u - look["shift_x"], v - look["shift_y"]
    cosine, sine = look["turn"].cos() / look["scale"], look["turn"].sin() / look["scale"]
    x, y = across * cosine + down * sine, down * cosine - across * sine
    whole = Window(pixels, x, y, look["scale"] * (size / 2), torch.zeros_like(x))

    def window(left_right: float, top: float, bottom: float) -> Window:
        """The pixels that can show this part of the face."""
        turn, scale = reach["turn"][1], reach["scale"]
        lean = turn * scale[1]
        first = min(top * factor for factor in scale) + reach["shift_y"][0] - lean * left_right
        last = max(bottom * factor for factor in scale) + reach["shift_y"][1] + lean * left_right
        wide = left_right * scale[1] + reach["shift_x"][1] + lean * max(abs(top), abs(bottom))
        rows, columns = (
            slice(max(0, int((low + 1) * size / 2 - 1)), min(size, int((high + 1) * size / 2 + 2)))
            for low, high in ((first, last), (-wide, wide))
        )
        return whole.part(rows, columns)

    warm = 1 + look["warmth"].unsqueeze(1) * _tint(1.0, 0.0, -1.0)  # the light's colour
    skin = look.along(_SKIN, "tone") * (warm + look["undertone"].unsqueeze(1) * _tint(0.04, 0.0, -0.08))
    hair = look.picked(_HAIR, "hair_colour") * (warm * look["hair_light"].unsqueeze(1))
    _behind(whole, look, hair)
    _body(window(2.0, 0.4, 3.0), look, skin)
    _ears(window(1.15, -0.3, 0.35), look, skin)
    dome = _face(whole, look, skin)
    _freckles(window(0.8, -0.07, 0.47), look, skin)
    _beard(window(0.97, -0.25, 1.05), look, hair)
    _mouth(window(0.56, 0.17, 0.87), look, skin)
    _nose(window(0.42, -0.45, 0.75), look, skin)
    _eyes(window(0.8, -0.5, 0.35), look, hair)
    _brows(window(0.8, -0.75, 0.1), look, hair)
    _glasses(window(0.95, -0.45, 0.48), look)
    _hair(whole, look, hair)
    _light(whole, look, dome)
    pixels.clamp_(0, 1)


def _background(look: Look, pixels: Tensor, u: Tensor, v: Tensor) -> None:
    """A slope of brightness in any direction, and a soft spot."""
    turn, change = look["back_turn"], look["back_change"]
    light = u * (turn * change) + v * ((1 - turn.abs()) * change)
    far = (u - look["spot_x"]).square() + (v - look["spot_y"]).square()
    light.addcmul_(far.mul_(-1 / look["spot_size"]).add_(1).clamp_(min=0), look["spot_light"])
    torch.add(look.colour("back"), light.unsqueeze(1), out=pixels)


def _behind(whole: Window, look: Look, hair: Tensor) -> None:
    """Hair that falls behind the head of some."""
    who = look.above("style", 0.5)
    if not len(who):
        return
    x, y, sharp = whole.x[who], whole.y[who], whole.sharp[who]
    length = (0.35 + 1.8 * (look["style"] - 0.5))[who]  # how far below the eyes it falls
    width = (look["face_width"] + look["hair_volume"] + 0.06)[who]
    # Fourth powers make the ellipse a rounded box.
    box = x.div_(width).square_().square_()
    below = y.add_(0.4 - length / 2).div_(0.55 + length / 2).square_()
    inside = box.addcmul_(below, below).neg_().add_(1)
    whole.person[who] = inside.mul_(0.25 * width * sharp).add_(0.5).clamp_(0, 1)
    whole.paint(whole.person, hair * 0.72)


def _body(part: Window, look: Look, skin: Tensor) -> None:
    part.add(part.cover(torch.minimum(0.36 - part.x.abs(), part.y - 0.5)), skin * 0.8)
    shoulders = part.disc(part.x, part.y - 1.95, torch.tensor(1.2), torch.tensor(0.85))
    part.add(shoulders, look.colour("shirt"))


def _ears(part: Window, look: Look, skin: Tensor) -> None:
    ears = look["ears"]
    part.add(part.disc(part.x.abs().sub_(look["face_width"]), part.y - 0.02, ears, ears * 1.4), skin * 0.88)


def _face(whole: Window, look: Look, skin: Tensor) -> Tensor:
    """Returns 1 − q of the face's ellipse: 1 in the middle, 0 at the border."""
    y, width = whole.y, look["face_width"]
    taper = torch.addcmul(width, y.clamp(min=0), -look["jaw"] * width)  # narrower towards the chin
    dome = torch.div(whole.x, taper, out=taper).square_().addcmul_(y, y).neg_().add_(1)
    whole.add(whole.cover(dome * (width / 2)), skin)
    return dome


def _freckles(part: Window, look: Look, skin: Tensor) -> None:
    """A lattice of dots under the eyes of some."""
    who = look.above("freckles", 0.75)
    if not len(who):
        return
    some = part.of(who)
    x, y = some.x - look["yaw"][who], some.y - look["nod"][who]
    dots = torch.sin(x * 34).mul_(torch.sin(y * 34)).sub_(0.25).mul_(2).clamp_(0, 1)
    where = some.disc(x.abs_().sub_(0.3), y.sub_(0.2), torch.tensor(0.24), torch.tensor(0.16))
    some.paint(dots.mul_(where).mul_(0.75), skin[who] * _tint(0.66, 0.5, 0.42))
    part.pixels[who] = some.pixels


def _beard(part: Window, look: Look, hair: Tensor) -> None:
    """A moustache, stubble or a full beard, by one number."""
    who = look.above("beard", 0.62)
    if not len(who):
        return
    some, look, hair = part.of(who), look.of(who), hair[who]
    kind, width = look["beard"], look["face_width"]
    stubble, full = (kind > 0.7).float(), (kind > 0.8).float()
    x, y = some.x - look["yaw"] * 0.6, some.y
    taper = torch.addcmul(width, y.clamp(min=0), -look["jaw"] * width)
    inside = (some.x / taper).square_().addcmul_(y, y).neg_().add_(0.98).mul_(0.4)
    line = torch.addcmul(y - look["beard_line"] - 0.28, x.abs(), torch.tensor(0.7))  # higher at the sides
    some.paint(some.cover(torch.minimum(inside, line)).mul_(0.4 * stubble + 0.52 * full), hair * 0.85)
    lip = y - (look["mouth_height"] + look["nod"] - 0.1)
    moustache = some.disc(x, lip.addcmul_(x, x, value=-0.6), look["mouth_width"], torch.tensor(0.07))
    some.paint(moustache.mul_(1 - stubble + full), hair * 0.8)
    part.pixels[who] = some.pixels


def _mouth(part: Window, look: Look, skin: Tensor) -> None:
    """Lips around a bow; open, they show teeth."""
    x = (part.x - look["yaw"]).div_(look["mouth_width"])
    arch = x.square_().neg_().add_(1)  # 1 in the middle, 0 at the corners
    level = look["mouth_height"] + look["nod"] - 0.6 * look["smile"]
    away = torch.addcmul(part.y - level, arch, -look["smile"])  # from the line between the lips
    gap = look["mouth_open"].clamp(min=0)
    distance, corners = away.abs(), arch * (look["mouth_width"] / 2)
    part.paint(
        part.cover((arch * (look["lips"] + gap)).sub_(distance).minimum(corners)),
        torch.lerp(skin * 0.72, _ROSE, 0.25 + 0.6 * look["lip_red"].unsqueeze(1)),
    )
    # A closed mouth keeps a thin seam.
    inner = part.cover((arch * gap.clamp(min=0.014)).sub_(distance).minimum(corners))
    part.paint(inner, _MOUTH)
    teeth = part.cover(away.neg_().sub_(0.25 * gap)).mul_(inner)
    part.paint(teeth.mul_((gap > 0.02).float()), _WHITE)


def _nose(part: Window, look: Look, skin: Tensor) -> None:
    """A ridge on the side away from the light, and a shaded tip."""
    width, length = look["nose_width"], look["nose_length"]
    x = part.x - look["yaw"] * 1.5
    y = part.y - (look["nod"] + look["eye_height"] + length)  # 0 at the tip
    away = torch.where(look["light_x"] > 0, -0.05, 0.05)
    part.paint(part.disc(x - away, y + length * 0.5, torch.tensor(0.03), length * 0.5).mul_(0.6), skin * 0.76)
    part.paint(part.disc(x, y, width, width * 0.65).mul_(0.85), skin * _tint(0.76, 0.68, 0.68))
    part.paint(part.disc(x, y.add_(width * 0.28), width * 0.75, width * 0.42), skin * 1.04)


def _eyes(part: Window, look: Look, hair: Tensor) -> None:
    """Both eyes are one shape, mirrored at the middle of the face."""
    x, out, y = _from_eyes(part, look)
    size = look["eye_size"]
    height = size * look["eye_shape"] * look["eye_open"]
    part.paint(part.disc(out, y + 0.02, size * 1.14, height + 0.03), hair * 0.35 + 0.02)
    white = part.disc(out, y, size, height)
    part.paint(white, _WHITE)
    iris = size * look["iris"]
    ahead = out.mul(x.sign_()).sub_(look["gaze"] * size)
    part.paint(part.disc(ahead, y, iris, iris).mul_(white), look.picked(_EYES, "eye_colour"))
    part.paint(part.disc(ahead, y, iris * 0.5, iris * 0.5).mul_(white), _PUPIL)


def _brows(part: Window, look: Look, hair: Tensor) -> None:
    _, out, y = _from_eyes(part, look)
    arc = (
        y.add_(look["brow_height"] + look["brow_raise"]).addcmul_(out, look["brow_slope"]).addcmul_(out, out, value=1.5)
    )
    brow = torch.minimum(look["brow_thick"] - arc.abs_(), look["brow_width"] - out.abs_())
    part.paint(part.cover(brow), hair * 0.6)


def _from_eyes(part: Window, look: Look) -> tuple[Tensor, Tensor, Tensor]:
    """Places relative to the features' middle line (x), and to the middle of the nearer eye, outwards and down."""
    x = part.x - look["yaw"]
    out = x.abs().sub_(look["eye_spacing"])
    return x, out, torch.addcmul(part.y - (look["eye_height"] + look["nod"]), out, look["eye_tilt"])


def _glasses(part: Window, look: Look) -> None:
    """Round or oval frames with a bridge and arms, for some."""
    who = look.above("glasses", 0.72)
    if not len(who):
        return
    some, look = part.of(who), look.of(who)
    x, out, y = _from_eyes(some, look)
    radius = look["glasses_size"]
    lens = (out / radius).square_().add_((y / (radius * look["glasses_shape"])).square_()).sub_(1).mul_(radius / 2)
    bar = 0.025 - (y + 0.03).abs_()
    bridge = torch.minimum(bar, (look["eye_spacing"] - radius) - x.abs_())
    arms = torch.minimum(bar, torch.minimum(out.sub_(radius), look["face_width"] - some.x.abs()))
    frame = some.cover((0.032 - lens.abs_()).maximum(bridge).maximum(arms))
    some.paint(frame, look.picked(_FRAMES, "glasses_colour"))
    part.pixels[who] = some.pixels


def _hair(whole: Window, look: Look, hair: Tensor) -> None:
    """The cap of hair down to the hairline, and a bun."""
    x, y, volume = whole.x, whole.y, look["hair_volume"]
    wave = torch.sin(x * look["wave_rate"]).mul_(look["wave"])
    cap = (x / (look["face_width"] + 0.03 + volume * 0.7)).square_()
    cap.add_((y + 0.06).div_(1 + volume).square_()).neg_().add_(1).mul_(0.45).add_(wave, alpha=0.4)
    turned = x - look["yaw"] * 0.7
    line = wave.addcmul_(turned, look["parting"]).addcmul_(turned.square_(), look["hair_arch"]).add_(look["hairline"])
    cover = whole.cover(torch.minimum(cap, line.sub_(y), out=cap))
    who = look.above("bun", 0.78)
    if len(who):
        some, radius = whole.of(who), 0.34 * look["bun"][who]
        knot = some.disc(some.x, some.y + (1.08 + volume[who]), radius, radius * 0.8)
        cover[who] = cover[who].maximum(knot)
    cover.mul_((look["style"] > 0.07).float())  # the others are bald
    whole.add(cover, hair)


def _light(whole: Window, look: Look, dome: Tensor) -> None:
    """Shade the person as a ball: `exposure + strength·(light · place) + roundness·(1 − q)`."""
    strength = look["light_strength"]
    shade = dome.clamp_(min=0).mul_(0.2).add_(look["exposure"] - 1.1)
    shade.addcmul_(whole.x, look["light_x"] * strength).addcmul_(whole.y, look["light_y"] * strength)
    shade.clamp_(-0.65, 0.5).mul_(whole.person)
    whole.pixels.addcmul_(whole.pixels, shade.unsqueeze(1))
