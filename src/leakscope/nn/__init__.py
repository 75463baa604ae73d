"""Networks and losses that several kinds of method share; priors, defences, attacks and metrics build on them.

| what | module |
|---|---|
| structural similarity, differentiable | `ssim` |
| LPIPS: AlexNet, its channel weights, and the distance in its maps | `alexnet`, `perceptual` |
| random convolutions, trained on nothing | `random_features` |
| both sides of an adversarial game, and running averages of weights | `adversarial`, `averages` |
| the P space of a style generator, and boxes around common styles | `style_space` |
| curves for people: fewer points, means that skip what is not finite | `curves` |
| files of trained weights; double precision where there is one | `weights`, `precision` |
"""
