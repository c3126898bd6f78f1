//! Batched transposition: `xt[b, n, m] = x[b, m, n]`, for elements of 1, 2 or 4 bytes, bit for bit.
//!
//! *Tensors*: any number of inputs `NAME` of two or three axes; each gives an output `NAMEt`.
//! *Cost*: every element read and written once, memory bound.  *Numerics*: none; bits are moved.
//! *Schedule*: one square tile a block through shared memory, so that both sides of global memory see whole rows; the
//! tile's rows are one word longer than needed, which spreads a column over the banks.
//! *Source*: elementary.

use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, Plan, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, Params, Problem, TensorSpec, Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How large a block's tile is.
#[derive(KernelConfig, Clone, Debug)]
pub struct TransposeConfig {
    /// Rows and columns of a tile.
    #[tune(64, 32, 128)]
    pub tile: usize,
}

/// Transposes the last two axes.
#[kernel(deterministic, batch_invariant(b))]
pub fn transpose<T: dsl::DType>(cfg: &TransposeConfig, x: In![T; b, m, n], y: Out![T; b, n, m]) {
    let tile = cfg.tile;
    let word = host!(4 / T::DTYPE.bytes(1));
    let (mi, ni, bi) = grid((m.div_ceil(tile), n.div_ceil(tile), b));
    let (m0, n0) = (mi * tile, ni * tile);
    let (from, to) = (x.pick(bi), y.pick(bi));

    let part = shared::<T, 2>([tile, tile + word]);
    for (i, j) in parallel([tile, tile]) {
        part[(i, j)] = from[(m0 + i, n0 + j)];
    }
    for (j, i) in parallel([tile, tile]) {
        to[(n0 + j, m0 + i)] = part[(i, j)];
    }
}

/// The plain loops, on elements of `size` bytes.
pub fn reference(x: &[u8], size: usize, [b, m, n]: [usize; 3]) -> Vec<u8> {
    let mut y = vec![0; x.len()];
    for batch in 0..b {
        for i in 0..m {
            for j in 0..n {
                let (from, to) = ((batch * m + i) * n + j, (batch * n + j) * m + i);
                y[to * size..(to + 1) * size].copy_from_slice(&x[from * size..(from + 1) * size]);
            }
        }
    }
    y
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct Transpose;

const OP: &str = "transpose";
/// Dtypes with elements of 1, 2 and 4 bytes.
const TYPES: [DType; 11] = [
    DType::F32,
    DType::I32,
    DType::U32,
    DType::F16,
    DType::Bf16,
    DType::E4m3,
    DType::E5m2,
    DType::E8m0,
    DType::I8,
    DType::U8,
    DType::Bool,
];

/// The dtype that carries the bits of another of its size.
fn carrier(dtype: DType) -> DType {
    match dtype.bits() {
        32 => DType::U32,
        16 => DType::Bf16,
        _ => DType::U8,
    }
}

fn kernel_for(carrier: DType) -> Arc<dyn KernelDef> {
    match carrier {
        DType::U32 => transpose::kernel::<U32>(),
        DType::Bf16 => transpose::kernel::<Bf16>(),
        _ => transpose::kernel::<U8>(),
    }
}

/// The inputs among inputs and outputs.
fn inputs(specs: &p::Specs) -> Vec<&TensorSpec> {
    // A tensor is an output if its name is another tensor's name and a `t`.
    let is_output = |name: &str| name.strip_suffix('t').is_some_and(|base| specs.contains_key(base));
    specs.values().filter(|s| !is_output(&s.name)).collect()
}

/// `[batch, m, n]`.
fn sizes(spec: &TensorSpec) -> Result<[usize; 3], OpError> {
    if !TYPES.contains(&spec.dtype) {
        let message = format!("input `{}` is {}; expected elements of 1, 2 or 4 bytes", spec.name, spec.dtype);
        return Err(p::refuse(OP, message));
    }
    match *spec.shape.as_slice() {
        [m, n] => Ok([1, m, n]),
        [b, m, n] => Ok([b, m, n]),
        _ => {
            let message = format!("input `{}` has shape {:?}; expected two or three axes", spec.name, spec.shape);
            Err(p::refuse(OP, message))
        }
    }
}

/// A view with a batch axis, as the dtype that carries its bits.
fn batched(view: TensorView) -> TensorView {
    let mut view = TensorView { dtype: carrier(view.dtype), ..view };
    if view.shape.len() == 2 {
        view.shape.insert(0, 1);
        view.strides.insert(0, view.shape[1] * view.shape[2]);
    }
    view
}

impl OpSpec for Transpose {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: None,
            family: "layout",
            formula: "xt[b, n, m] = x[b, m, n]",
            source: "elementary",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        [DType::Bf16, DType::U8, DType::U32].map(kernel_for).into()
    }
    fn outputs(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let inputs = inputs(specs);
        if inputs.is_empty() {
            return Err(p::refuse(OP, "needs at least one input"));
        }
        let output = |x: &TensorSpec| {
            sizes(x)?;
            let mut shape = x.shape.clone();
            let axes = shape.len();
            shape.swap(axes - 2, axes - 1);
            Ok(p::spec(&format!("{}t", x.name), x.dtype, &shape))
        };
        inputs.into_iter().map(output).collect()
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let step = |x: &TensorSpec| {
            let [b, m, n] = sizes(x)?;
            let kernel = kernel_for(carrier(x.dtype));
            let config = p::choose(configs, &kernel, &[("b", b), ("m", m), ("n", n)]);
            let views = [x.name.clone(), format!("{}t", x.name)].map(|name| p::view(OP, problem, &name).map(batched));
            let args = views.into_iter().map(|v| v.map(Arg::Tensor)).collect::<Result<_, _>>()?;
            Ok(Launch { kernel, config, args })
        };
        Ok(Plan { steps: inputs(&specs).into_iter().map(step).collect::<Result<_, _>>()?, workspaces: vec![] })
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        let specs = p::host_specs(self, problem)?;
        let mut outputs = BTreeMap::new();
        for (x, y) in inputs(&specs).into_iter().zip(self.outputs(&specs, &problem.params)?) {
            let data = problem.tensors.get(&x.name).map_or(&[][..], |t| &t.data);
            let data = reference(data, x.dtype.bytes(1), sizes(x)?);
            outputs.insert(y.name, HostTensor { dtype: y.dtype, shape: y.shape, data });
        }
        Ok(outputs)
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |id: &str, shape: &[usize], dtypes: &[(&str, DType)]| {
            let inputs = dtypes.iter().map(|(name, dtype)| p::filled(name, *dtype, shape, Fill::Bits));
            p::case(id, inputs.collect(), &[])
        };
        vec![
            make("empty", &[2, 0, 33], &[("x", DType::Bf16)]),
            make("b3_m37_n50", &[3, 37, 50], &[("x", DType::Bf16), ("q", DType::E4m3)]),
            make("m64_n128", &[64, 128], &[("x", DType::F32), ("q", DType::U8)]),
            make("m130_n1", &[130, 1], &[("x", DType::I32)]),
            make("b2_m129_n72", &[2, 129, 72], &[("x", DType::F16)]),
        ]
    }
    fn cost(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * p::bytes(&inputs(specs)) }
    }
}
