//! Input of a golden expansion.

#[kernel(dims(h: fixed), require(h % 8 == 0), batch_invariant(t))]
pub fn scale_rows<T: Float>(cfg: &Cfg, x: In![T; t, h], s: In![F32; t], y: Out![T; t, h]) {
    let r0 = grid(t.div_ceil(cfg.rows)) * cfg.rows;
    let mut top = 0.0f32;
    #[label(scale)]
    for (i, j) in parallel([cfg.rows, h]) {
        let v = x[(r0 + i, j)].to::<F32>() * s[r0 + i];
        y[(r0 + i, j)] = v.to::<T>();
    }
    if cfg.track && r0 < 8 {
        top = max(top, 1.0);
    }
}
