//! The kernel of `gemm_fp8` for few rows: the same sums, the weights on the side that matrix units have most rows on.
//!
//! A matrix unit of a warp group multiplies 64 rows at least; with few rows of `a` most would be idle. Here a tile is
//! `[rows of b, rows of a]`, so that `a` brings 8 rows at least, and K is cut into parts that run beside each other where a
//! target has warp groups and clusters: `k_splits` runs of K, and in each `k_chains` sums that take steps in turn.
//! *Numerics*: each part is summed as `gemm_fp8` does; parts are added one after another, from +0, chains of the first
//! run first. Steps past the end of K add +0.
//! *Schedule*: bound by reading `b`; parts keep all multiprocessors reading and hide the latency of a step.
//! The operator is in `fp8`.

use super::scales::{Scaled, Scales, promoted_step};
use dsl::prelude::*;
use kiln_codegen::ir::{DType, Kernel};
use kiln_codegen::schedule::{Options, Reason, Schedule, attach, automatic};
use kiln_codegen::spec::KernelDef;
use kiln_codegen::target::Target;
use kiln_codegen::tune::{Config, ConfigValue};
use std::sync::Arc;

/// Tile of a block, and how K is cut.
#[derive(KernelConfig, Clone, Debug)]
pub struct FewConfig {
    /// Rows of `a` of a tile.
    #[tune(16, 8, 32, 64, 128)]
    pub rows: usize,
    /// Rows of `b` of a tile.
    #[tune(64, 128)]
    pub columns: usize,
    /// Runs of K; with clusters, blocks that share a tile.
    #[numerics]
    #[tune(2, 1, 3, 4)]
    pub k_splits: usize,
    /// Sums of a run that take steps in turn; with warp groups, one each.
    #[numerics]
    #[tune(2, 1, 4)]
    pub k_chains: usize,
    /// Stages of the copies.
    #[tune(8, 4, 6, 10, 12, 16)]
    pub slots: usize,
    /// Steps of K printed in a row.
    #[tune(4, 1, 2, 8)]
    pub steps: usize,
    /// Rows of `b` that share a scale.
    #[default(128)]
    pub gran_n: usize,
    /// Add what `d` holds.
    #[default(false)]
    pub in_place: bool,
}

/// K of a step.
const STEP: usize = 128;

/// What a step of K multiplies.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    a: Gm<E4m3, 2>,
    b: Gm<E4m3, 2>,
    rows: Scales,
    columns: Scales,
    a_s: Tile<E4m3, Shared, 2>,
    b_s: Tile<E4m3, Shared, 2>,
    acc: Tile<F32, Frag, 2>,
    row: Ix,
    column: Ix,
}

/// Step `ki` of K.
#[kernel_fn]
fn multiply(t: Step, ki: Ix) {
    #[label(load_b)]
    copy(t.b.at((t.column, ki * STEP)), t.b_s);
    #[label(load_a)]
    copy(t.a.at((t.row, ki * STEP)), t.a_s);
    #[label(mma)]
    promoted_step(
        Scaled { tile: t.b_s, scales: t.columns, row: t.column },
        Scaled { tile: t.a_s, scales: t.rows, row: t.row },
        ki * STEP,
        t.acc,
    );
}

/// Multiplies.
#[kernel(require(cfg.rows % 8 == 0, cfg.k_splits > 0, cfg.k_chains > 0), pdl, deterministic, batch_invariant(m))]
pub fn gemm_fp8_few<O: Float>(
    cfg: &FewConfig,
    a: In![E4m3; m, k; strides(lda, 1)],
    sa: In![F32; m, ka; strides(_, _)],
    b: In![E4m3; n, k; strides(ldb, 1)],
    sb: In![F32; nb, ka; strides(_, _)],
    c: Option<In![O; m, n; strides(ldc, 1)]>,
    d: InOut![O; m, n; strides(ldd, 1)],
) {
    let (bm, bn, chains) = (cfg.rows, cfg.columns, cfg.k_chains);
    let parts = host!(cfg.k_splits * chains);
    let rows = host!(Scales { plain: Some(sa), packed: None, rows: 1, depth: STEP });
    let columns = host!(Scales { plain: Some(sb), packed: None, rows: cfg.gran_n, depth: STEP });
    // All parts have as many steps.
    let steps = k.div_ceil(STEP).div_ceil(parts);

    #[label(tiles)]
    for (ni, mi) in tile_loop((n.div_ceil(bn), m.div_ceil(bm)), Raster::panels(8)) {
        let b_s = shared::<E4m3, 2>([bn, STEP]);
        let a_s = shared::<E4m3, 2>([bm, STEP]);
        let acc = frag::<F32, 2>([bn, bm]);
        let sum = if host!(parts == 1) { acc } else { frag::<F32, 2>([bn, bm]) };
        zero(sum);
        let tile = host!(Step { a, b, rows, columns, a_s, b_s, acc, row: mi * bm, column: ni * bn });
        if host!(parts == 1) {
            #[label(k_loop)]
            for ki in pipeline(0..steps, cfg.slots) {
                multiply(tile, ki);
            }
        } else {
            for part in 0..parts {
                zero(acc);
                let first = part / chains * (steps * chains) + part % chains;
                #[label(part_loop)]
                for step in pipeline(0..steps, cfg.slots) {
                    multiply(tile, first + step * chains);
                }
                for (i, j) in parallel([bn, bm]) {
                    sum[(i, j)] += acc[(i, j)];
                }
            }
        }

        #[label(store)]
        for (i, j) in parallel([bn, bm]) {
            let (row, column) = (mi * bm + j, ni * bn + i);
            let x = sum[(i, j)];
            let x = if let Some(c) = c {
                x + c[(row, column)].to::<F32>()
            } else if cfg.in_place {
                x + d[(row, column)].to::<F32>()
            } else {
                x
            };
            d[(row, column)] = x.to::<O>();
        }
    }
}

/// Warp groups that multiply and one thread that copies, on targets that have both.
fn schedule(k: &Kernel, config: &Config) -> Result<Schedule, Reason> {
    let c = FewConfig::from_config(config).map_err(|e| e.to_string())?;
    let caps = Target::Sm90a.caps().ok_or("no limits are known")?;
    let options = Options {
        groups: (c.columns / 64).max(1),
        stages: c.slots,
        turns: c.k_chains,
        left_once: true,
        unroll: c.steps,
        ..Options::default()
    };
    automatic(k, &caps, &options)
}

/// The kernel for an output dtype.
pub fn kernel_for(out: DType) -> Arc<dyn KernelDef> {
    let plain: Arc<dyn KernelDef> =
        if out == DType::F32 { gemm_fp8_few::kernel::<F32>() } else { gemm_fp8_few::kernel::<Bf16>() };
    attach(plain, Target::Sm90a, schedule)
}

/// Multiprocessors of the devices the defaults are for.
const UNITS: usize = 132;

/// Tiles of 64 rows on both sides are no more than multiprocessors: cutting K is then what keeps all of them busy.
pub(crate) fn fits_at_once(m: usize, n: usize) -> bool {
    n.div_ceil(64) * m.div_ceil(64) <= UNITS
}

/// What suits a shape where nobody chose: as many parts as fill a device of about 132 multiprocessors with tiles of 64 rows
/// of `b`, and as many stages as 200 KiB of shared memory hold. How K is cut does not depend on the rows of `a`, up to 64
/// of them.
pub(crate) fn suggest(config: &mut Config, [m, n, k]: [usize; 3]) {
    let bm = [8, 16, 32, 64].into_iter().find(|&b| m <= b).unwrap_or(64);
    let blocks = k.div_ceil(STEP).max(1);
    let tiles = n.div_ceil(64) * m.div_ceil(64).max(1);
    let splits = (1..=3).rev().find(|s| tiles * s <= 136 && blocks >= 4 * s).unwrap_or(1);
    // Four warp groups leave too few registers for tiles of 64 rows.
    let chains = [4, 2, 1].into_iter().find(|c| blocks >= 3 * splits * c && (bm < 64 || *c < 4)).unwrap_or(1);
    let inbox = (splits * chains - 1) * 64 * bm * 4;
    let slot = (64 + bm) * STEP + 128usize.max(bm * 4);
    let stages = ((200 << 10) - inbox) / slot;
    let fields = [
        ("rows", bm),
        ("columns", 64),
        ("k_splits", splits),
        ("k_chains", chains),
        // Each warp group has slots of its own.
        ("slots", (stages.min(16) / chains).max(1) * chains),
    ];
    for (name, x) in fields {
        config.0.insert(name.into(), ConfigValue::Int(x));
    }
}
