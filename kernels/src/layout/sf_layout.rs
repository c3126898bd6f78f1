//! Scale factors in the two layouts that matrix kernels read: columns of f32, or columns of packed exponents.
//!
//! `sf_mn_major[κ, m] = sf[m, κ]`, and `sf_packed[w, m]` holds the exponents of `sf[m, 4w .. 4w+4]`, the first in the low
//! byte. Rows past `mn` and groups past `sf_k` are 0.
//!
//! *Tensors*: `sf` `[mn, sf_k]` f32; with the parameter `form: "mn_major"` (or a `tma_align_elems`) `sf_mn_major`
//! `[sf_k, al(mn, align)]` f32; with `form: "packed"` `sf_packed` `[⌈sf_k/4⌉, al(mn, 4)]` i32, for scales that are powers
//! of two.
//! *Cost*: every scale read once; memory bound and small.
//! *Numerics*: none; bits are moved. A packed scale that is no power of two loses its mantissa, so callers validate.
//! *Schedule*: one tile of rows and groups a block through shared memory, so both sides see whole rows.
//! *Source*: OCP Microscaling Formats 1.0 for the exponents; alignment is that of bulk copies of columns.

use crate::numeric::round::{f32_tensor, i32_tensor, ue8m0_code};
use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, ParamValue, Params, Problem, Split,
    TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How large a block's tile is.
#[derive(KernelConfig, Clone, Debug)]
pub struct SfLayoutConfig {
    /// Rows of a tile.
    #[tune(64, 32)]
    pub rows: usize,
    /// Groups of a tile, a multiple of four.
    #[tune(32, 64)]
    pub groups: usize,
}

/// Moves scales to columns of f32.
#[kernel(require(mn <= aligned), deterministic, batch_invariant(mn))]
pub fn sf_mn_major(cfg: &SfLayoutConfig, sf: In![F32; mn, k; strides(ld, 1)], out: Out![F32; k, aligned]) {
    let (rows, groups) = (cfg.rows, cfg.groups);
    let (mi, ki) = grid((aligned.div_ceil(rows), k.div_ceil(groups)));
    let (m0, k0) = (mi * rows, ki * groups);

    let part = shared::<F32, 2>([rows, groups + 1]);
    for (i, j) in parallel([rows, groups]) {
        part[(i, j)] = sf[(m0 + i, k0 + j)];
    }
    for (j, i) in parallel([groups, rows]) {
        out[(k0 + j, m0 + i)] = part[(i, j)];
    }
}

/// Moves exponents of scales to columns, four to a word.
#[kernel(require(cfg.groups % 4 == 0, mn <= aligned), deterministic, batch_invariant(mn))]
pub fn sf_pack(cfg: &SfLayoutConfig, sf: In![F32; mn, k; strides(ld, 1)], out: Out![I32; ceil(k, 4), aligned]) {
    let (rows, groups) = (cfg.rows, cfg.groups);
    let words = groups / 4;
    let (mi, ki) = grid((aligned.div_ceil(rows), k.div_ceil(groups)));
    let (m0, k0) = (mi * rows, ki * groups);

    let part = shared::<F32, 2>([rows, groups + 1]);
    for (i, j) in parallel([rows, groups]) {
        part[(i, j)] = sf[(m0 + i, k0 + j)];
    }
    for (w, i) in parallel([words, rows]) {
        let mut word = 0i32;
        for byte in unroll(0..4) {
            let exponent = ((part[(i, w * 4 + byte)].bits() >> 23) & 255).to::<I32>();
            word = word | (exponent << (8 * byte as i32));
        }
        out[(ki * words + w, m0 + i)] = word;
    }
}

/// What a problem asks for.
struct Move {
    mn: usize,
    k: usize,
    /// Multiple of the rows' number in the output, for columns of f32; `None` for packed exponents.
    align: Option<usize>,
}

impl Move {
    fn output(&self) -> TensorSpec {
        match self.align {
            Some(align) => p::spec("sf_mn_major", DType::F32, &[self.k, self.mn.next_multiple_of(align)]),
            None => p::spec("sf_packed", DType::I32, &[self.k.div_ceil(4), self.mn.next_multiple_of(4)]),
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct SfLayout;

const OP: &str = "sf_layout";

/// Reads a problem's inputs and parameters.
fn move_of(specs: &p::Specs, params: &Params) -> Result<Move, OpError> {
    let sf = p::input(OP, specs, "sf", &[DType::F32], 2)?;
    let aligned = params.contains_key("tma_align_elems");
    let form = match p::word(OP, params, "form", &["", "mn_major", "packed"])? {
        "" if aligned => "mn_major",
        form => form,
    };
    let align = p::count(OP, params, "tma_align_elems", Some(4))?;
    Ok(Move { mn: sf.shape[0], k: sf.shape[1], align: (form == "mn_major").then_some(align) })
}

impl OpSpec for SfLayout {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "layout",
            formula: "sf_mn_major[κ, m] = sf[m, κ]; sf_packed[κ/4, m] byte κ%4 = exponent of sf[m, κ]",
            source: "OCP Microscaling Formats 1.0",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![sf_mn_major::kernel(), sf_pack::kernel()]
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(vec![move_of(specs, params)?.output()])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let wanted = move_of(&p::checked(self, problem)?, &problem.params)?;
        let kernel = if wanted.align.is_some() { sf_mn_major::kernel() } else { sf_pack::kernel() };
        let config = p::choose(configs, &kernel, &[("mn", wanted.mn), ("k", wanted.k)]);
        let args = vec![p::arg(OP, problem, "sf")?, p::arg(OP, problem, &wanted.output().name)?];
        Ok(p::single(kernel, config, args))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let wanted = move_of(&p::host_specs(self, problem)?, &problem.params)?;
        let sf = p::numbers(OP, problem, "sf")?;
        let output = wanted.output();
        let columns = output.shape[1];
        let (mut moved, mut packed) = (vec![0.0; output.shape[0] * columns], vec![0i32; output.shape[0] * columns]);
        for m in 0..wanted.mn {
            for k in 0..wanted.k {
                let scale = sf[m * wanted.k + k];
                if wanted.align.is_some() {
                    moved[k * columns + m] = scale;
                } else {
                    packed[k / 4 * columns + m] |= ((ue8m0_code(scale as f32) as u32) << (8 * (k % 4))) as i32;
                }
            }
        }
        let tensor = match wanted.align {
            Some(_) => f32_tensor(&output.shape, &moved),
            None => i32_tensor(&output.shape, &packed),
        };
        Ok([(output.name, tensor)].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Vec<Split> {
        // Columns are padded to whole steps.
        let Ok(x) = move_of(specs, params) else { return vec![] };
        let step = x.align.unwrap_or(4);
        vec![p::split("mn", x.mn, step, &[("sf", 0, step), ("sf_mn_major", 1, step), ("sf_packed", 1, step)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, form: &str, shape: [usize; 2]| {
            let power = |i: usize| 2f64.powi((i * 37 % 180) as i32 - 100);
            let scales = Fill::Values((0..shape[0] * shape[1]).map(power).collect());
            let params = [("form", ParamValue::Text(form.into()))];
            p::case(id, vec![p::filled("sf", DType::F32, &shape, scales)], &params)
        };
        vec![
            make("no_rows", "packed", [0, 8]),
            make("mn97_k57", "mn_major", [97, 57]),
            make("mn97_k57_packed", "packed", [97, 57]),
            make("mn4_k1_packed", "packed", [4, 1]),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, params: &Params) -> Cost {
        let Ok(outputs) = self.outputs(specs, params) else { return Cost::default() };
        Cost { flops: 0.0, bytes: p::bytes(&[&specs["sf"], &outputs[0]]) }
    }
}
