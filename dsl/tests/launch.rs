//! What a kernel generates around its builder: configs as data, typed arguments, launches.

use dsl::prelude::*;
use kiln_codegen::abi::{Arg, Launch, LaunchErrorKind, Launcher, Plan, TensorView};
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::ir::{DType as Data, Literal};
use kiln_codegen::spec::{DimExpr, ParamInfoKind, StrideInfo};
use kiln_codegen::tune::{Config, ConfigValue};
use std::cell::RefCell;
use std::sync::Arc;

/// Which order.
#[derive(KernelConfig, Clone, Copy, Debug, PartialEq)]
enum Order {
    Rows,
    Columns,
}

/// A config with every kind of field.
#[derive(KernelConfig, Clone, Debug, PartialEq)]
struct Cfg {
    /// Rows of
    /// a block.
    #[tune(2, 4, 8)]
    #[default(4)]
    rows: usize,
    #[numerics]
    #[default(128)]
    group: usize,
    #[tune(true, false)]
    fast: bool,
    checked: bool,
    #[tune(Order::Columns, Order::Rows)]
    order: Order,
    #[tune(1, 2)]
    #[default(7)]
    odd: usize,
}

#[test]
fn configs_are_data() {
    let default = Cfg { rows: 4, group: 128, fast: true, checked: false, order: Order::Columns, odd: 7 };
    assert_eq!(Cfg::default(), default);
    let space = Cfg::space();
    assert_eq!(space.name, "Cfg");
    assert_eq!(space.all().len(), 3 * 2 * 2 * 3);
    assert_eq!(space.axes[0].doc, "Rows of a block.");
    assert_eq!(space.axes.iter().filter(|a| a.numerics).map(|a| a.name.as_str()).collect::<Vec<_>>(), ["group"]);
    let data = default.to_config();
    assert_eq!(data.to_string(), "checked=false,fast=true,group=128,odd=7,order=Columns,rows=4");
    assert_eq!(Cfg::from_config(&data), Ok(default));
    let wrong = |k: &str, v: ConfigValue| {
        let mut c = data.clone();
        c.0.insert(k.into(), v);
        Cfg::from_config(&c).expect_err("refused").message
    };
    assert_eq!(wrong("order", ConfigValue::Word("Up".into())), "config field `order` is one of Rows, Columns, got Up");
    assert_eq!(wrong("rows", ConfigValue::Bool(true)), "config field `rows` is a number, got true");
    assert!(wrong("row", ConfigValue::Int(1)).starts_with("config field `row` does not exist; fields: rows, group"));
    assert_eq!(
        Cfg::from_config(&Config::default()).expect_err("empty").message,
        "config field `rows` is a number, got nothing"
    );
}

#[kernel(dims(h: fixed), require(h % cfg.rows == 0, t <= 4 * h), deterministic)]
fn scaled<T: Float, U: Float>(
    cfg: &Cfg,
    x: In![T; t, h; strides(ld, 1)],
    s: Option<In![F32; ceil(t, 2) + 1, h / 4; strides(_, _)]>,
    a: Scalar![F32],
    b: Option<Scalar![Bf16]>,
    y: InOut![U; t, h],
) {
    let r = grid(t.div_ceil(cfg.rows)) * cfg.rows;
    if let Order::Rows = cfg.order {
        warps(1);
    }
    if cfg.order == Order::Columns && cfg.fast {
        warps(2);
    }
    for (i, j) in parallel([cfg.rows, h]) {
        let v = x[(r + i, j)].to::<F32>() * a;
        let v = if let Some(s) = s { v * s[((r + i) / 2, j / 4)] } else { v };
        let v = if let Some(b) = b { v + b.to::<F32>() } else { v };
        y[(r + i, j)] = v.to::<U>();
    }
}

struct Recorder(RefCell<Vec<Launch>>);
impl Launcher for Recorder {
    type Error = ();
    fn launch(&self, launch: &Launch) -> Result<(), ()> {
        self.0.borrow_mut().push(launch.clone());
        Ok(())
    }
    fn run(&self, plan: &Plan) -> Result<(), ()> {
        plan.steps.iter().try_for_each(|l| self.launch(l))
    }
}

fn tensor(dtype: Data, shape: &[usize]) -> TensorView {
    let bytes = dtype.bytes(shape.iter().product());
    TensorView::contiguous(dtype, shape, Arc::new(HostMemory::zeroed(bytes)))
}

#[test]
fn launches_carry_typed_arguments() {
    let (x, y) = (tensor(Data::Bf16, &[3, 8]), tensor(Data::E4m3, &[3, 8]));
    let on = Recorder(RefCell::default());
    let args = scaled::Args {
        x: View::new(&x).expect("fits"),
        s: None,
        a: 0.5,
        b: Some(half::bf16::from_f32(2.0)),
        y: ViewMut::new(&y).expect("fits"),
    };
    scaled::launch::<Bf16, E4m3, _>(&on, &Cfg::default(), args).expect("recorded");
    let launches = on.0.into_inner();
    let l = &launches[0];
    assert_eq!(l.kernel.info().name, "scaled");
    assert_eq!(l.kernel.info().dtypes, [("T".to_string(), Data::Bf16), ("U".to_string(), Data::E4m3)]);
    assert_eq!(l.config, Cfg::default().to_config());
    assert!(matches!(&l.args[0], Arg::Tensor(t) if t.dtype == Data::Bf16));
    assert!(matches!(l.args[1], Arg::Absent));
    assert!(matches!(l.args[2], Arg::Scalar(s) if s == Literal::f32(0.5)));
    assert!(matches!(l.args[3], Arg::Scalar(Literal { dtype: Data::Bf16, bits: 0x4000 })));
    assert_eq!(l.args.len(), 5);

    assert_eq!(View::<F32, 2>::new(&x).expect_err("dtype").kind, LaunchErrorKind::DType);
    assert_eq!(View::<Bf16, 1>::new(&x).expect_err("rank").kind, LaunchErrorKind::Rank);
}

#[test]
fn declarations_are_data() {
    let def = scaled::kernel::<F32, F32>();
    let info = def.info();
    assert!(info.deterministic && info.batch_invariant.is_empty());
    assert_eq!(info.dims.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["t", "h", "ld"]);
    let ParamInfoKind::Tensor { dims, strides, .. } = &info.params[1].kind else { panic!("a tensor") };
    assert_eq!(dims.iter().map(DimExpr::to_string).collect::<Vec<_>>(), ["(ceil(t, 2) + 1)", "(h / 4)"]);
    assert_eq!(strides.as_deref(), Some(&[StrideInfo::Any, StrideInfo::Any][..]));
    assert!(info.params[1].optional && !info.params[0].optional);
    let config = Cfg::default().to_config();
    let dims = |t: usize, h: usize| [("t".to_string(), t), ("h".to_string(), h)].into();
    assert_eq!(def.require(&dims(8, 8), &config), Ok(()));
    assert_eq!(def.require(&dims(99, 6), &config), Err(vec!["h % cfg.rows == 0".into(), "t <= 4 * h".into()]));
}

#[test]
fn facts_of_requires_and_configs_select_code() {
    let def = scaled::kernel::<Bf16, Bf16>();
    let mut request = kiln_codegen::spec::BuildRequest {
        config: Cfg::default().to_config(),
        fixed: [("h".to_string(), 8)].into(),
        multiples: [("t".to_string(), 4)].into(),
        ..Default::default()
    };
    let k = def.build(&request).expect("builds");
    assert_eq!(k.warps, 2);
    assert_eq!(k.requires.iter().map(|r| r.text.as_str()).collect::<Vec<_>>(), ["t <= 4 * h"]);
    assert_eq!(k.syms.iter().map(|s| (s.name.as_str(), s.multiple_of)).collect::<Vec<_>>(), [("t", 4), ("ld", 1)]);
    let rows = Cfg { order: Order::Rows, ..Cfg::default() };
    request.config = rows.to_config();
    assert_eq!(def.build(&request).expect("builds").warps, 1);
}
