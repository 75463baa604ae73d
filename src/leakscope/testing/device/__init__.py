"""A simulated accelerator, `sim:0` and `sim:1`, that refuses device mix-ups which pass unnoticed on a CPU.

```python
from leakscope.testing import device

device.install()                       # compiles it once; raises Unavailable without a C++ compiler
x = torch.rand(3, device="sim:1")
x + torch.rand(3)                      # RuntimeError: two devices, sim:1 and cpu

with device.counted() as seen:         # what would make a real accelerator wait
    x.sum().item()
assert seen.waits == 1

with device.without_float64():         # as on Apple's GPUs
    x.double()                         # TypeError
```

Test on `sim:1`: code that means the device it was given but says "the first one" is then caught too.
What such a device cannot show is listed in docs/concepts/devices.md.
"""

from leakscope.testing.device.build import Unavailable
from leakscope.testing.device.registration import Counts, counted, install, unavailable, without_float64

__all__ = ["Counts", "Unavailable", "counted", "install", "unavailable", "without_float64"]
