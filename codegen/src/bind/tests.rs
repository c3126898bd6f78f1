//! One case a mistake, with the text a user reads; then the facts a good launch gives.

use super::*;
use crate::abi::{L2Promotion, MapAxis, Memory, Signature, Swizzle, TensorMap, TensorMapSpec};
use crate::diag::Diagnostic;
use crate::emit::{GridPlan, Source};
use crate::host_memory::HostMemory;
use crate::ir::build::row_major;
use crate::ir::{Builder, Kernel, Literal, ParamKind, Span, Sym, SymKind};
use crate::spec::{DimInfo, ParamInfo};
use crate::tune::{Axis, Space};
use std::sync::Arc;

/// `y[t, h] = x[t, h] * w[h] (+ pair[t, ceil(h, 2)])` with a leading stride on `x` and a scalar `eps`.
#[derive(Debug)]
struct Toy(KernelInfo);

fn sym(n: &str) -> DimExpr {
    DimExpr::Sym(n.into())
}

fn toy() -> Toy {
    let tensor = |name: &str, dtype, access, dims: Vec<DimExpr>, strides, optional| ParamInfo {
        name: name.into(),
        kind: ParamInfoKind::Tensor { dtype, access, dims, strides },
        optional,
    };
    let ld = vec![StrideInfo::Expr(sym("ld")), StrideInfo::Expr(DimExpr::Const(1))];
    let half = DimExpr::Ceil(Box::new(sym("h")), Box::new(DimExpr::Const(2)));
    Toy(KernelInfo {
        name: "toy".into(),
        file: "toy.rs".into(),
        line: 1,
        dtypes: vec![],
        params: vec![
            tensor("x", DType::Bf16, Access::In, vec![sym("t"), sym("h")], Some(ld), false),
            tensor("w", DType::F32, Access::In, vec![sym("h")], None, false),
            tensor("pair", DType::F32, Access::In, vec![sym("t"), half], None, true),
            tensor("bias", DType::F32, Access::In, vec![sym("groups")], None, true),
            tensor("y", DType::Bf16, Access::Out, vec![sym("t"), sym("h")], None, false),
            ParamInfo { name: "eps".into(), kind: ParamInfoKind::Scalar { dtype: DType::F32 }, optional: false },
        ],
        dims: [("t", false), ("h", true), ("ld", false), ("groups", false)]
            .map(|(n, fixed)| DimInfo { name: n.into(), fixed })
            .to_vec(),
        deterministic: false,
        batch_invariant: vec![],
        launch: Default::default(),
    })
}

impl KernelDef for Toy {
    fn info(&self) -> &KernelInfo {
        &self.0
    }
    fn space(&self) -> Space {
        let values = vec![ConfigValue::Int(4), ConfigValue::Int(8)];
        let rows = Axis { name: "rows".into(), values, default: 0, numerics: false, doc: String::new() };
        Space { name: "ToyCfg".into(), axes: vec![rows] }
    }
    fn require(&self, dims: &BTreeMap<String, usize>, _: &Config) -> Result<(), Vec<String>> {
        if dims["h"].is_multiple_of(8) { Ok(()) } else { Err(vec!["h % 8 == 0".into()]) }
    }
    fn build(&self, _: &BuildRequest) -> Result<Kernel, Vec<Diagnostic>> {
        Err(vec![])
    }
}

fn tensor(dtype: DType, shape: &[usize]) -> TensorView {
    let bytes = dtype.bytes(shape.iter().product());
    TensorView::contiguous(dtype, shape, Arc::new(HostMemory::zeroed(bytes)))
}

fn good() -> Vec<Arg> {
    vec![
        Arg::Tensor(tensor(DType::Bf16, &[4, 24])),
        Arg::Tensor(tensor(DType::F32, &[24])),
        Arg::Absent,
        Arg::Absent,
        Arg::Tensor(tensor(DType::Bf16, &[4, 24])),
        Arg::Scalar(Literal::f32(1e-6)),
    ]
}

fn refuse(change: impl FnOnce(&mut Vec<Arg>), kind: LaunchErrorKind, text: &str) {
    let mut args = good();
    change(&mut args);
    let toy = toy();
    let e = bind(&toy, &toy.space().default_config(), &args).expect_err("the launch is refused");
    assert_eq!(e.kind, kind, "{e}");
    assert_eq!(e.to_string(), text);
}

fn view(args: &mut [Arg], i: usize) -> &mut TensorView {
    match &mut args[i] {
        Arg::Tensor(v) => v,
        _ => panic!("argument {i} is a tensor"),
    }
}

#[test]
fn number_of_arguments() {
    refuse(
        |a| a.truncate(2),
        LaunchErrorKind::Arguments,
        "cannot launch `toy`: expected 6 arguments (x, w, pair, bias, y, eps), got 2; pass one argument a parameter, \
         `Arg::Absent` for an optional one that is left out",
    );
}

#[test]
fn kinds_of_arguments() {
    refuse(
        |a| a[1] = Arg::Scalar(Literal::f32(1.0)),
        LaunchErrorKind::Arguments,
        "cannot launch `toy`: parameter `w`: expected a tensor, got a scalar; pass a tensor view",
    );
    refuse(
        |a| a[5] = Arg::Tensor(tensor(DType::F32, &[1])),
        LaunchErrorKind::Arguments,
        "cannot launch `toy`: parameter `eps`: expected a scalar, got a tensor; pass the number itself, not a tensor \
         that holds it",
    );
    refuse(
        |a| a[4] = Arg::Absent,
        LaunchErrorKind::Arguments,
        "cannot launch `toy`: parameter `y`: expected a tensor, got nothing; only parameters declared `Option<..>` may \
         be absent",
    );
}

#[test]
fn dtype_of_tensor_and_scalar() {
    refuse(
        |a| a[1] = Arg::Tensor(tensor(DType::Bf16, &[24])),
        LaunchErrorKind::DType,
        "cannot launch `toy`: parameter `w`: expected f32, got bf16; convert the argument, or instantiate the kernel \
         for this dtype",
    );
    refuse(
        |a| a[5] = Arg::Scalar(Literal::i32(1)),
        LaunchErrorKind::DType,
        "cannot launch `toy`: parameter `eps`: expected f32, got i32; convert the argument, or instantiate the kernel \
         for this dtype",
    );
}

#[test]
fn rank() {
    refuse(
        |a| a[1] = Arg::Tensor(tensor(DType::F32, &[1, 24])),
        LaunchErrorKind::Rank,
        "cannot launch `toy`: parameter `w`: expected rank 1 [h], got rank 2 [1, 24]; reshape the tensor to the \
         declared axes",
    );
}

#[test]
fn dimension_of_a_name_and_of_an_expression() {
    refuse(
        |a| a[1] = Arg::Tensor(tensor(DType::F32, &[32])),
        LaunchErrorKind::Dimension,
        "cannot launch `toy`: parameter `w`: expected axis 0 of extent `h` = 24, got 32 (shape [32]); `h` is 24 from \
         axis 1 of `x`",
    );
    refuse(
        |a| a[2] = Arg::Tensor(tensor(DType::F32, &[4, 24])),
        LaunchErrorKind::Dimension,
        "cannot launch `toy`: parameter `pair`: expected axis 1 of extent `ceil(h, 2)` = 12, got 24 (shape [4, 24]); \
         `h` is 24 from axis 1 of `x`",
    );
}

#[test]
fn require_clause() {
    refuse(
        |a| {
            a[0] = Arg::Tensor(tensor(DType::Bf16, &[4, 20]));
            a[1] = Arg::Tensor(tensor(DType::F32, &[20]));
            a[4] = Arg::Tensor(tensor(DType::Bf16, &[4, 20]));
        },
        LaunchErrorKind::Require,
        "cannot launch `toy`: expected h % 8 == 0, got groups = 0, h = 20, ld = 20, t = 4 with config rows=4; pass \
         tensors whose shapes satisfy the kernel's `require`, or another config",
    );
}

#[test]
fn config_fields() {
    let toy = toy();
    let fail = |c: Config| bind(&toy, &c, &good()).expect_err("the config is refused").to_string();
    assert_eq!(
        fail(Config::default()),
        "cannot launch `toy`: expected config field `rows`, got config `` without it; start from the default config: \
         rows=4"
    );
    let with = |fields: &[(&str, ConfigValue)]| {
        Config(fields.iter().map(|(n, v)| (n.to_string(), v.clone())).collect::<BTreeMap<_, _>>())
    };
    assert_eq!(
        fail(with(&[("rows", ConfigValue::Bool(true))])),
        "cannot launch `toy`: expected config field `rows` to be a number, got true; start from the default config: \
         rows=4"
    );
    assert_eq!(
        fail(with(&[("rows", ConfigValue::Int(4)), ("cols", ConfigValue::Int(4))])),
        "cannot launch `toy`: expected config fields of ToyCfg (rows), got field `cols`; start from the default \
         config: rows=4"
    );
    assert!(bind(&toy, &with(&[("rows", ConfigValue::Int(64))]), &good()).is_ok(), "code may leave the space");
}

#[test]
fn stride_patterns() {
    refuse(
        |a| view(a, 4).strides = vec![1, 4],
        LaunchErrorKind::Strides,
        "cannot launch `toy`: parameter `y`: expected a contiguous tensor, strides [24, 1], got strides [1, 4] (shape \
         [4, 24]); copy it into a contiguous tensor, or declare `strides(..)` on the parameter",
    );
    refuse(
        |a| view(a, 0).strides = vec![1, 4],
        LaunchErrorKind::Strides,
        "cannot launch `toy`: parameter `x`: expected stride 1 on axis 1, got 4 (strides [1, 4]); pass a view with the \
         declared strides, or copy it into one",
    );
}

#[test]
fn address_and_range() {
    refuse(
        |a| {
            *view(a, 1) = tensor(DType::F32, &[32]);
            view(a, 1).shape = vec![24];
            view(a, 1).offset_bytes = 2;
            // The address itself differs from run to run; the offset decides.
            view(a, 1).memory = Arc::new(Fixed { address: 0x1000, len: 128, device: "cpu" });
        },
        LaunchErrorKind::Alignment,
        "cannot launch `toy`: parameter `w`: expected an address that is a multiple of 4 bytes for f32, got address \
         0x1002; move the view's byte offset to a whole element",
    );
    refuse(
        |a| view(a, 1).offset_bytes = 8,
        LaunchErrorKind::OutOfMemoryRange,
        "cannot launch `toy`: parameter `w`: expected a view inside its allocation of 96 bytes, got one that ends at \
         byte 104 (shape [24], strides [1], offset 8); shrink the view or allocate more",
    );
    refuse(
        |a| view(a, 0).strides = vec![usize::MAX / 2, 1],
        LaunchErrorKind::OutOfMemoryRange,
        &format!(
            "cannot launch `toy`: parameter `x`: expected a view inside its allocation of 192 bytes, got one that ends \
             at byte more than 64 bits can count (shape [4, 24], strides [{}, 1], offset 0); shrink the view or \
             allocate more",
            usize::MAX / 2
        ),
    );
}

/// Memory with a chosen address.
#[derive(Debug)]
struct Fixed {
    address: u64,
    len: usize,
    device: &'static str,
}
impl Memory for Fixed {
    fn device(&self) -> &str {
        self.device
    }
    fn len_bytes(&self) -> usize {
        self.len
    }
    fn address(&self) -> u64 {
        self.address
    }
    fn host(&self) -> Option<&HostMemory> {
        None
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn devices_differ() {
    refuse(
        |a| view(a, 1).memory = Arc::new(Fixed { address: 0x1000, len: 96, device: "cuda:1" }),
        LaunchErrorKind::Device,
        "cannot launch `toy`: parameter `w`: expected device cpu, where `x` lives, got device cuda:1; download it and \
         upload it to the device of the others",
    );
}

#[test]
fn outputs_overlap() {
    refuse(
        |a| a[4] = a[0].clone(),
        LaunchErrorKind::Overlap,
        "cannot launch `toy`: parameter `y`: expected an output that shares no memory with other arguments, got memory \
         that `x` uses too; give the output a tensor of its own",
    );
    let mut all = tensor(DType::Bf16, &[4, 48]);
    all.shape = vec![4, 24];
    let mut right = all.clone();
    right.offset_bytes = 48;
    let seen = |v: &TensorView| Seen {
        dtype: v.dtype,
        shape: Box::leak(v.shape.clone().into_boxed_slice()),
        strides: v.strides.clone(),
        offset_bytes: v.offset_bytes,
        view: Some(Box::leak(Box::new(v.clone()))),
        workspace: None,
    };
    assert!(!overlap(&seen(&all), &seen(&right)), "columns beside each other");
    right.offset_bytes = 46;
    assert!(overlap(&seen(&all), &seen(&right)), "one column shared");
    assert!(!meets_itself(&seen(&all)));
    all.strides = vec![0, 1];
    assert!(meets_itself(&seen(&all)), "a broadcast output");
}

#[test]
fn request_of_a_good_launch() {
    let toy = toy();
    let config = toy.space().default_config();
    let b = bind(&toy, &config, &good()).expect("the launch is fine");
    assert_eq!(b.dims, BTreeMap::from([("t", 4), ("h", 24), ("ld", 24), ("groups", 0)].map(|(n, v)| (n.into(), v))));
    assert_eq!(b.request.fixed, BTreeMap::from([("h".to_string(), 24)]));
    assert_eq!(b.request.multiples, BTreeMap::from([("ld".to_string(), 8)]), "`t` is on first axes only");
    assert_eq!(b.request.facts.iter().map(|f| f.present).collect::<Vec<_>>(), [true, true, false, false, true, true]);
    assert!(b.request.facts[0].contiguous && b.request.facts[0].stride_multiples.is_empty());
    assert!(!b.request.wide_index);

    let mut args = good();
    let memory: Arc<dyn Memory> = Arc::new(Fixed { address: 0x1000, len: 4096, device: "cpu" });
    let x = TensorView { dtype: DType::Bf16, shape: vec![4, 24], strides: vec![40, 1], offset_bytes: 8, memory };
    args[0] = Arg::Tensor(x);
    let b = bind(&toy, &config, &args).expect("a strided input is fine");
    assert_eq!(b.dims["ld"], 40);
    assert_eq!(
        b.request.facts[0],
        ParamFacts { present: true, align_bytes: 8, contiguous: false, tma: false, stride_multiples: vec![8, 0] }
    );
}

#[test]
fn idle_strides_do_not_matter() {
    let toy = toy();
    let mut args = good();
    for (i, shape) in [(0, vec![1, 24]), (4, vec![1, 24])] {
        args[i] = Arg::Tensor(tensor(DType::Bf16, &shape));
    }
    view(&mut args, 0).strides = vec![7, 1];
    let b = bind(&toy, &toy.space().default_config(), &args).expect("one row has no stride");
    assert!(b.request.facts[0].contiguous);
}

#[test]
fn wide_index_from_the_span() {
    let toy = toy();
    let mut args = good();
    let len = 1 << 33;
    let memory: Arc<dyn Memory> = Arc::new(Fixed { address: 0x1000, len, device: "cpu" });
    args[0] = Arg::Tensor(TensorView {
        dtype: DType::Bf16,
        shape: vec![4, 24],
        strides: vec![1 << 29, 1],
        offset_bytes: 0,
        memory,
    });
    let b = bind(&toy, &toy.space().default_config(), &args).expect("a wide tensor is fine");
    assert!(b.request.wide_index, "3 * 2^29 elements fit 31 bits, their bytes do not");
}

#[test]
fn workspaces_bind_like_tensors() {
    let toy = toy();
    let mut args = good();
    args[1] = Arg::Workspace { index: 0, dtype: DType::F32, shape: vec![24], offset_bytes: 8 };
    let b = bind(&toy, &toy.space().default_config(), &args).expect("a workspace is fine");
    assert_eq!(b.request.facts[1].align_bytes, 8);
    args[4] = Arg::Workspace { index: 0, dtype: DType::Bf16, shape: vec![4, 24], offset_bytes: 96 };
    let e = bind(&toy, &toy.space().default_config(), &args).expect_err("both use bytes 96..104");
    assert_eq!(e.kind, LaunchErrorKind::Overlap);
}

#[test]
fn symbols_and_grid() {
    let mut b = Builder::new("k", Span::unknown());
    let any = |name: &str, kind| Sym { name: name.into(), kind, multiple_of: 1, min: 0, max: i32::MAX as i64 };
    let t = b.sym(any("t", SymKind::Dim));
    b.sym(any("x.stride0", SymKind::Stride { param: 0, axis: 0 }));
    b.sym(any("gone", SymKind::Dim));
    let (t, four) = (b.ix_sym(t), b.ix_const(4));
    let blocks = b.ix_div_ceil(t, four);
    let less = b.ix_sub(blocks, four);
    b.grid(&[blocks, less]);
    let kernel = b.finish().expect("closed");
    let dims = BTreeMap::from([("t".to_string(), 9)]);
    let x = TensorView { strides: vec![40, 1], ..tensor(DType::Bf16, &[4, 24]) };
    let syms = sym_values(&kernel, &dims, &[Arg::Tensor(x)]);
    assert_eq!(syms, [9, 40, 0]);
    assert_eq!(grid(&kernel, &syms), Some(vec![3, 0]), "a negative extent is an empty grid");
    assert_eq!(row_major(&[2, 3]), [3, 1]);
}

#[test]
fn limits_name_the_axis() {
    let caps = crate::target::Target::Sm90a.caps().expect("a target with threads");
    let source = |threads, shared_bytes, cluster| Source {
        text: String::new(),
        signature: Signature { entry: "k".into(), args: vec![] },
        threads,
        shared_bytes,
        cluster,
        cooperative: false,
        dependent_launch: false,
        grid: GridPlan::Blocks,
        npu: None,
    };
    assert!(check_limits("k", &[1 << 30, 65535], &source(1024, caps.shared_bytes, [4, 2, 2]), &caps).is_ok());
    let text = |g: &[i64], threads, shared| {
        check_limits("k", g, &source(threads, shared, [1; 3]), &caps).expect_err("beyond a limit").to_string()
    };
    assert_eq!(
        text(&[1, 65536], 128, 0),
        "cannot launch `k`: expected at most 65535 blocks on grid axis 1, got 65536; use larger tiles, or put the long \
         axis first in `grid(..)`"
    );
    assert!(text(&[1], 2048, 0).contains("at most 1024 threads a block, got 2048"));
    assert!(text(&[1], 128, 1 << 20).contains("at most 232448 bytes of shared memory a block, got 1048576"));
    let large = check_limits("k", &[32], &source(128, 0, [32, 1, 1]), &caps).expect_err("beyond a limit").to_string();
    assert!(large.contains("at most 16 blocks a cluster, got 32; use a config with a smaller cluster"), "{large}");
    let old = crate::target::Target::Sm80.caps().expect("a target with threads");
    let none = check_limits("k", &[32], &source(128, 0, [2, 1, 1]), &old).expect_err("no clusters").to_string();
    assert!(none.contains("at most 1 blocks a cluster, got 2"), "{none}");
}

#[test]
fn tensor_maps_follow_from_the_arguments() {
    let mut b = Builder::new("k", Span::unknown());
    let any = |name: &str, kind| Sym { name: name.into(), kind, multiple_of: 1, min: 0, max: i32::MAX as i64 };
    let (t, h) = (b.sym(any("t", SymKind::Dim)), b.sym(any("h", SymKind::Dim)));
    let ld = b.sym(any("x.stride0", SymKind::Stride { param: 0, axis: 0 }));
    let (t, h, ld, one) = (b.ix_sym(t), b.ix_sym(h), b.ix_sym(ld), b.ix_const(1));
    let kind = ParamKind::Tensor {
        dtype: DType::Bf16,
        access: Access::In,
        extents: vec![t, h],
        strides: vec![ld, one],
        align_bytes: 16,
        tma: true,
    };
    let param = b.param("x", kind);
    b.grid(&[t]);
    let (eight, bad) = (b.ix_const(8), b.ix_sub(one, t));
    let kernel = b.finish().expect("closed");
    let axis = |extent, stride, box_extent| MapAxis { extent, stride, box_extent };
    let spec = TensorMapSpec {
        param,
        dtype: DType::Bf16,
        offset: None,
        axes: vec![axis(h, one, 64), axis(t, ld, 4)],
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B128,
    };
    let make = |spec: &TensorMapSpec, shape: &[usize], strides: &[usize], offset_bytes| {
        let memory: Arc<dyn Memory> = Arc::new(Fixed { address: 0x1000, len: 1 << 20, device: "cpu" });
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        let dims = BTreeMap::from([("t".to_string(), shape[0]), ("h".to_string(), shape[1])]);
        let args = [Arg::Tensor(TensorView { dtype: DType::Bf16, shape, strides, offset_bytes, memory })];
        tensor_map(&kernel, spec, &sym_values(&kernel, &dims, &args), &args).map_err(|e| (e.kind, e.to_string()))
    };
    let good = TensorMap {
        dtype: DType::Bf16,
        address: 0x1020,
        extents: vec![24, 4],
        strides_bytes: vec![80],
        boxes: vec![64, 4],
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B128,
    };
    assert_eq!(make(&spec, &[4, 24], &[40, 1], 32), Ok(good.clone()));
    // The stride of one row is nobody's, and nothing of an empty tensor is anywhere.
    let row = TensorMap { extents: vec![24, 1], strides_bytes: vec![16], ..good.clone() };
    assert_eq!(make(&spec, &[1, 24], &[7, 1], 32), Ok(row));
    let empty = TensorMap { extents: vec![24, 0], strides_bytes: vec![16], ..good.clone() };
    assert_eq!(make(&spec, &[0, 24], &[7, 1], 34), Ok(empty));
    let shifted = TensorMapSpec { offset: Some(eight), ..spec.clone() };
    assert_eq!(make(&shifted, &[4, 16], &[40, 1], 16).map(|m| m.address), Ok(0x1020));

    let (kind, text) = make(&spec, &[4, 24], &[40, 1], 8).expect_err("not aligned");
    assert_eq!(kind, LaunchErrorKind::Alignment);
    assert_eq!(
        text,
        "cannot launch `k`: parameter `x`: expected an address that is a multiple of 16 bytes, got 0x1008; copy it into a \
         tensor whose address and rows are multiples of 16 bytes"
    );
    assert_eq!(make(&spec, &[4, 24], &[44, 1], 0).map_err(|e| e.0), Err(LaunchErrorKind::Strides));
    let boxes = TensorMapSpec { axes: vec![axis(h, one, 512), axis(t, ld, 4)], ..spec.clone() };
    let (kind, text) = make(&boxes, &[4, 24], &[40, 1], 0).expect_err("a large box");
    assert_eq!(kind, LaunchErrorKind::Limits);
    assert!(text.ends_with("got 512; use a config with other tiles"), "{text}");
    let negative = TensorMapSpec { axes: vec![axis(bad, one, 64)], ..spec.clone() };
    assert_eq!(make(&negative, &[4, 24], &[40, 1], 0).map_err(|e| e.0), Err(LaunchErrorKind::Limits));
    let columns = TensorMapSpec { axes: vec![axis(t, ld, 8)], swizzle: Swizzle::None, ..spec };
    assert_eq!(make(&columns, &[4, 24], &[40, 1], 0).map_err(|e| e.0), Err(LaunchErrorKind::Strides));
}

#[test]
fn what_a_tensor_map_can_describe_is_known_before_the_build() {
    let toy = toy();
    let fact = |shape: [usize; 2], strides: [usize; 2], offset_bytes| {
        let mut args = good();
        let memory: Arc<dyn Memory> = Arc::new(Fixed { address: 0x1000, len: 1 << 20, device: "cpu" });
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        args[4] = Arg::Tensor(tensor(DType::Bf16, &shape));
        args[0] = Arg::Tensor(TensorView { dtype: DType::Bf16, shape, strides, offset_bytes, memory });
        let b = bind(&toy, &toy.space().default_config(), &args).expect("a launch");
        b.request.facts[0].tma
    };
    assert!(fact([4, 24], [24, 1], 0));
    assert!(fact([4, 24], [40, 1], 16));
    assert!(!fact([4, 24], [24, 1], 8), "the address");
    assert!(!fact([4, 24], [28, 1], 0), "the stride");
    assert!(!fact([4, 24], [0, 1], 0), "the same row four times");
    assert!(fact([1, 24], [28, 1], 0), "one row");
    assert!(fact([0, 24], [28, 1], 2), "no row");
}
