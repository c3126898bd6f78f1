//! Input of a golden expansion.

#[kernel_fn]
fn control(x: V<F32>, names: &[&str]) -> V<F32> {
    let mut s = x;
    let mut count = host!(0usize);
    for name in unroll(names.iter()) {
        if name.len() > 3 {
            break;
        }
        count += 1;
    }
    while s < 8.0 {
        s *= 2.0;
        if s == 4.0 || s != s {
            continue;
        }
    }
    let acc = frag::<F32, 1>([count]);
    for i in 0..count {
        acc[i] += if i > 2 { s } else { 0.0 };
    }
    match names.first() {
        Some(s) if s.is_empty() => lit(0.0),
        _ => s,
    }
}
