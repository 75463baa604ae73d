"""Networks with named cuts: our own, torchvision's, timm's, and the user's."""
