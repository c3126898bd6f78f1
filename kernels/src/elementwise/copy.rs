//! Copy: `y[i] = x[i]`. Its speed is the ceiling that memory-bound operators are measured against.
//!
//! *Tensors*: `x`, `y` `[n]` u32.
//! *Cost*: 8 bytes moved an element, nothing computed.  *Numerics*: bits are kept.
//! *Schedule*: each block takes `block` consecutive words; a thread has several 16-byte loads in flight.
//! *Source*: the read-and-write bandwidth every memory-bound figure is a share of (McCalpin, STREAM, 1995: copy).

use crate::problem as p;
use dsl::prelude::*;
use kiln_codegen::abi::Plan;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::spec::{
    Case, Configs, Cost, Fill, HostProblem, KernelDef, OpError, OpInfo, OpSpec, Params, Problem, Split, TensorSpec,
    Tolerance,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How the words are cut into blocks.
#[derive(KernelConfig, Clone, Debug)]
pub struct CopyConfig {
    /// Words a block copies.
    #[tune(2048, 1024, 4096, 8192)]
    pub block: usize,
    /// Warps of a block.
    #[tune(4, 8)]
    pub warps: usize,
}

/// Copies a vector of words.
#[kernel(deterministic)]
pub fn copy_words(cfg: &CopyConfig, x: In![U32; n], y: Out![U32; n]) {
    let i0 = grid(n.div_ceil(cfg.block)) * cfg.block;
    warps(cfg.warps);
    // Through a tile: all loads of a block are issued before its first store.
    let words = frag::<U32, 1>([cfg.block]);
    copy(x.at(i0), words);
    copy(words, y.at(i0));
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct Copy;

const OP: &str = "copy";

impl OpSpec for Copy {
    fn info(&self) -> OpInfo {
        OpInfo {
            name: OP,
            bench_name: Some("copy_kernel"),
            family: "elementwise",
            formula: "y[i] = x[i]",
            source: "elementary",
        }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![copy_words::kernel()]
    }
    fn outputs(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        let x = p::input(OP, inputs, "x", &[DType::U32], 1)?;
        Ok(vec![p::spec("y", DType::U32, &x.shape)])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let specs = p::checked(self, problem)?;
        let kernel = copy_words::kernel();
        let config = p::choose(configs, &kernel, &[("n", specs["x"].shape[0])]);
        let args = ["x", "y"].map(|name| p::arg(OP, problem, name));
        Ok(p::single(kernel, config, args.into_iter().collect::<Result<_, _>>()?))
    }
    fn reference(&self, problem: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        p::host_specs(self, problem)?;
        Ok([("y".into(), problem.tensors["x"].clone())].into())
    }
    fn splits(&self, specs: &BTreeMap<String, TensorSpec>, _: &Params) -> Vec<Split> {
        let n = specs.get("x").map_or(0, |x| x.shape.iter().product());
        vec![p::split("n", n, 1024, &[("x", 0, 1024), ("y", 0, 1024)])]
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        let make = |n: usize| p::case(format!("n{n}"), vec![p::filled("x", DType::U32, &[n], Fill::Bits)], &[]);
        [0, 1, 1001, 8192].map(make).into()
    }
    fn bench_keys(&self) -> &'static [&'static str] {
        &["mib"]
    }
    fn bench_shapes(&self) -> Vec<Vec<(String, usize)>> {
        vec![vec![("mib".into(), 1024)]]
    }
    fn bench_case(&self, shape: &[(String, usize)]) -> Result<Case, OpError> {
        let [mib] = p::bench_sizes(OP, shape, ["mib"])?;
        Ok(p::case(format!("mib{mib}"), vec![p::filled("x", DType::U32, &[mib << 18], Fill::Bits)], &[]))
    }
    fn cost(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        let Some(x) = inputs.get("x") else { return Cost::default() };
        Cost { flops: 0.0, bytes: 2.0 * p::bytes(&[x]) }
    }
}
