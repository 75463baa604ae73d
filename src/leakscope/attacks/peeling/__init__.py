"""The library behind `peel`, `peel-exact` and `e2e-lbfgs`: a network as a chain of blocks, each of them inverted.

An encoder is `z = B_k ∘ … ∘ B_1 ∘ S(x)`, S its shallow layers and `B(x) = ρ(W_s x + W_2 ρ(W_1 x))` a residual block.

| equation | module |
|---|---|
| `W v`, `Wᵀu`, `W⁺u` of one linear layer | `maps` |
| `A x = W x + A(0)`; `ρ(z)`; `J v` and `Jᵀu` of any part | `pieces` |
| `B(x)`, `z`, and the products of their Jacobians | `chain` |
| the encoder as a traced graph, and its waists | `trace` |
| which nodes of the graph are `W_s`, `W_1`, `W_2`, `ρ` | `take_apart` |
| the x with `B(x) = y`; the rank of J | `invert` |
| `min_d ‖J d − r‖² + λ‖d‖²`, `J d = r`, Anderson mixing | `krylov` |
| `min f(x)` within a box, one problem per row | `lbfgs` |

Modules above know nothing of those below, except that `invert` calls the two solvers.
"""
