//! A small kernel in plain IR, `y[i] = a · x[i]`, for the tests beside this file.

use kiln_codegen::abi::Plan;
use kiln_codegen::abi::{Arg, Launch, TensorView};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::{
    Access, BinaryOp, Builder, DType, IxVarKind, Kernel, Literal, Op, ParamKind, Span, Sym, SymKind,
};
use kiln_codegen::spec::{
    BuildRequest, Case, Configs, Cost, DimExpr, DimInfo, HostProblem, KernelDef, KernelInfo, OpError, OpInfo, OpSpec,
    ParamInfo, ParamInfoKind, Params, Problem, TensorSpec, Tolerance,
};
use kiln_codegen::tune::{Axis, Config, ConfigValue, Space};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The definition; `step` 2 leaves every second element out.
#[derive(Debug)]
pub struct Scale {
    info: KernelInfo,
    step: i64,
}

impl Scale {
    pub fn kernel() -> Arc<dyn KernelDef> {
        Self::with_step(1)
    }

    pub fn with_step(step: i64) -> Arc<dyn KernelDef> {
        let tensor = |name: &str, access| ParamInfo {
            name: name.into(),
            kind: ParamInfoKind::Tensor {
                dtype: DType::F32,
                access,
                dims: vec![DimExpr::Sym("n".into())],
                strides: None,
            },
            optional: false,
        };
        let a = ParamInfo { name: "a".into(), kind: ParamInfoKind::Scalar { dtype: DType::F32 }, optional: false };
        let info = KernelInfo {
            // The name tells builds apart, as the language's does for const generics.
            name: if step == 1 { "scale".into() } else { format!("scale_{step}") },
            file: file!().into(),
            line: line!(),
            dtypes: vec![],
            params: vec![tensor("x", Access::In), tensor("y", Access::Out), a],
            dims: vec![DimInfo { name: "n".into(), fixed: false }],
            deterministic: true,
            batch_invariant: vec![],
            launch: Default::default(),
        };
        Arc::new(Scale { info, step })
    }

    pub fn launch(x: TensorView, y: TensorView, a: f32) -> Launch {
        let kernel = Scale::kernel();
        let config = kernel.space().default_config();
        Launch { kernel, config, args: vec![Arg::Tensor(x), Arg::Tensor(y), Arg::Scalar(Literal::f32(a))] }
    }

    /// A launch of the kernel that leaves elements of its output out.
    pub fn broken(x: TensorView, y: TensorView) -> Launch {
        Launch { kernel: Scale::with_step(2), ..Scale::launch(x, y, 1.0) }
    }
}

impl KernelDef for Scale {
    fn info(&self) -> &KernelInfo {
        &self.info
    }
    fn space(&self) -> Space {
        let values = [128, 256, 512].map(ConfigValue::Int).to_vec();
        let block = Axis { name: "block".into(), values, default: 1, numerics: false, doc: String::new() };
        Space { name: "ScaleCfg".into(), axes: vec![block] }
    }
    fn require(&self, dims: &BTreeMap<String, usize>, config: &Config) -> Result<(), Vec<String>> {
        // Only the largest block is ever too large, so that small tensors stay usable.
        match config.0.get("block") {
            Some(ConfigValue::Int(512)) if dims["n"] < 1024 => Err(vec!["block <= n / 2".into()]),
            _ => Ok(()),
        }
    }
    fn build(&self, request: &BuildRequest) -> Result<Kernel, Vec<Diagnostic>> {
        let Some(ConfigValue::Int(block)) = request.config.0.get("block") else {
            panic!("bind has checked the config")
        };
        let block = *block;
        let mut b = Builder::new(&self.info.name, Span::unknown());
        let multiple_of = request.multiples.get("n").map_or(1, |&m| m as i64);
        let max = i64::from(i32::MAX);
        let n = b.sym(Sym { name: "n".into(), kind: SymKind::Dim, multiple_of, min: 0, max });
        let (n, one, zero) = (b.ix_sym(n), b.ix_const(1), b.ix_const(0));
        let tensor = |align_bytes, access| ParamKind::Tensor {
            dtype: DType::F32,
            access,
            extents: vec![n],
            strides: vec![one],
            align_bytes,
            tma: false,
        };
        let x = b.param("x", tensor(request.facts[0].align_bytes, Access::In));
        let y = b.param("y", tensor(request.facts[1].align_bytes, Access::Out));
        let value = b.free_value(DType::F32);
        b.param("a", ParamKind::Scalar { dtype: DType::F32, value });
        let (x, y) = (b.param_view(x), b.param_view(y));
        let (size, last) = (b.ix_const(block as i64), b.ix_const(block as i64 - 1));
        let blocks = b.ix_div_ceil(n, size);
        let id = b.grid(&[blocks])[0];
        let i = b.new_ix_var("i", IxVarKind::Element, Some(zero), Some(last));
        let body = b.open();
        let (id, at, step) = (b.ix_var(id), b.ix_var(i), b.ix_const(self.step));
        let at = b.ix_mul(at, step);
        let start = b.ix_mul(id, size);
        let at = b.ix_add(start, at);
        let v = b.push_value(DType::F32, |result| Op::Load { result, view: x, index: vec![at] });
        let v = b.push_value(DType::F32, |result| Op::Binary { result, op: BinaryOp::Mul, a: v, b: value });
        b.push(Op::Store { view: y, index: vec![at], value: v, checked: false });
        b.close();
        b.push(Op::Parallel { vars: vec![i], extents: vec![block], body, distribution: None });
        Ok(b.finish().expect("every scope is closed"))
    }
}

/// The operator: `y = 2 · x`.
#[derive(Debug)]
pub struct ScaleOp;

impl OpSpec for ScaleOp {
    fn info(&self) -> OpInfo {
        OpInfo { name: "scale", bench_name: None, family: "test", formula: "y = 2 x", source: "none" }
    }
    fn kernels(&self) -> Vec<Arc<dyn KernelDef>> {
        vec![Scale::kernel()]
    }
    fn outputs(&self, inputs: &BTreeMap<String, TensorSpec>, _: &Params) -> Result<Vec<TensorSpec>, OpError> {
        Ok(vec![TensorSpec { name: "y".into(), ..inputs["x"].clone() }])
    }
    fn plan(&self, problem: &Problem, configs: &dyn Configs) -> Result<Plan, OpError> {
        let (x, y) = (problem.tensors["x"].clone(), problem.tensors["y"].clone());
        let dims = BTreeMap::from([("n".to_string(), x.shape[0])]);
        let launch = Scale::launch(x, y, 2.0);
        let config = configs.choose(&*launch.kernel, &dims);
        Ok(Plan { steps: vec![Launch { config, ..launch }], workspaces: vec![] })
    }
    fn reference(&self, _: &HostProblem) -> Result<BTreeMap<String, HostTensor>, OpError> {
        Ok(BTreeMap::new())
    }
    fn tolerance(&self, _: &str, _: &Params) -> Tolerance {
        Tolerance::BitExact
    }
    fn cases(&self) -> Vec<Case> {
        vec![]
    }
    fn cost(&self, _: &BTreeMap<String, TensorSpec>, _: &Params) -> Cost {
        Cost::default()
    }
}
