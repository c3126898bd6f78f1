//! Input of a golden expansion.

#[kernel]
fn parameters(
    x: In![Bf16; m, ceil(k, 128) * 2; strides(ld, _)],
    z: InOut![F32; k],
    b: Option<In![F32; m]>,
    eps: Scalar![F32],
    n: Option<Scalar![I32]>,
) {
}
