//! Kernels of the first slice build IR.
use dsl::prelude::*;
use kiln_codegen::ir::Kernel;
use kiln_codegen::spec::{BuildRequest, KernelDef};

/// Config of `rmsnorm`.
#[derive(KernelConfig, Clone, Debug)]
pub struct RmsCfg {
    /// Rows a block.
    #[tune(1, 2, 4)]
    pub rows: usize,
    /// Warps.
    #[numerics]
    #[tune(4, 8)]
    pub warps: usize,
}

/// Root mean square norm.
#[kernel(dims(h: fixed), require(h % 8 == 0), batch_invariant(t))]
pub fn rmsnorm<T: Float>(cfg: &RmsCfg, x: In![T; t, h], w: In![T; h], y: Out![T; t, h], eps: Scalar![F32]) {
    let rows = cfg.rows;
    let r0 = grid(t.div_ceil(rows)) * rows;
    warps(cfg.warps);

    let xf = frag::<F32, 2>([rows, h]);
    copy_cast(x.at((r0, 0)), xf);
    let sq = map(xf, |v| v * v);
    let ss = reduce_sum(sq, 1);

    for (i, j) in parallel([rows, h]) {
        let inv = rsqrt(ss[i] * (1.0 / h as f32) + eps);
        y[(r0 + i, j)] = (xf[(i, j)] * inv * w[j].to::<F32>()).to::<T>();
    }
}

fn build(def: &dyn KernelDef, fixed: &[(&str, usize)]) -> Kernel {
    let request = BuildRequest {
        config: def.space().default_config(),
        fixed: fixed.iter().map(|(n, v)| (n.to_string(), *v)).collect(),
        ..BuildRequest::default()
    };
    match def.build(&request) {
        Ok(k) => k,
        Err(errors) => panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}

#[test]
fn rmsnorm_builds() {
    let k = build(&*rmsnorm::kernel::<Bf16>(), &[("h", 64)]);
    for op in &k.ops {
        let s = k.span_of(op.span);
        eprintln!("{}:{}:{} {:?}", s.file, s.line, s.column, op.op);
    }
    assert_eq!(k.params.len(), 4);
}
