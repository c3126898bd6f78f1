//! Programs that once told the tile VM and a device apart, as IR text, on random data.

use super::build::{Built, Tensor};
use super::run::{Outcome, Runner, Source};
use kiln_codegen::ir::{IxExpr, IxId, Kernel, ParamKind, parse};
use kiln_codegen::spec::{BuildRequest, DimExpr, DimInfo, KernelInfo, ParamInfo, ParamInfoKind};

/// Name and text of every program.
const FOUND: &[(&str, &str)] = &[
    // Reductions began at the neutral element of numbers, which hid NaN.
    ("larger_of_nan", include_str!("found/larger_of_nan.tile")),
    // A lane's consecutive elements went on into the next row of a box, with the index of the row before.
    ("region_of_short_rows", include_str!("found/region_of_short_rows.tile")),
    // The smallest integer is its own absolute value, and 0 is larger.
    ("absmax_of_the_smallest", include_str!("found/absmax_of_the_smallest.tile")),
    // A choice as the addend of a sum was printed without parentheses.
    ("region_of_a_choice", include_str!("found/region_of_a_choice.tile")),
    // A C++ compiler made 0 - (float)i the negative of a float, which is -0 for 0.
    ("zero_less_an_integer", include_str!("found/zero_less_an_integer.tile")),
    // Every operation on e5m2 saturates; the interpreter's reductions kept infinities.
    ("largest_of_infinities", include_str!("found/largest_of_infinities.tile")),
];

/// A text and the value of its dimensions.
#[derive(Clone, Debug)]
struct Found {
    name: &'static str,
    text: &'static str,
    size: usize,
}

impl Source for Found {
    fn seed(&self) -> u64 {
        self.size as u64
    }
    fn build(&self, _: Option<&BuildRequest>) -> Built {
        let kernel = parse::kernel(self.text).unwrap_or_else(|e| panic!("{}: {e:?}", self.name));
        let mut info = KernelInfo {
            name: kernel.name.clone(),
            file: self.name.into(),
            line: self.size as u32,
            dtypes: vec![],
            params: vec![],
            dims: kernel.syms.iter().map(|s| DimInfo { name: s.name.clone(), fixed: false }).collect(),
            deterministic: false,
            batch_invariant: vec![],
            launch: Default::default(),
        };
        let mut tensors = vec![];
        for p in &kernel.params {
            let ParamKind::Tensor { dtype, access, extents, .. } = &p.kind else { panic!("tensors only") };
            let dims = extents.iter().map(|&e| extent(&kernel, e)).collect();
            let kind = ParamInfoKind::Tensor { dtype: *dtype, access: *access, dims, strides: None };
            info.params.push(ParamInfo { name: p.name.clone(), kind, optional: false });
            let size = self.size as i64;
            let leaf = |e| match e {
                IxExpr::Sym(_) => Some(size),
                IxExpr::Const(_)
                | IxExpr::Var(_)
                | IxExpr::Data(_)
                | IxExpr::Add(..)
                | IxExpr::Sub(..)
                | IxExpr::Mul(..)
                | IxExpr::Div(..)
                | IxExpr::Mod(..)
                | IxExpr::Min(..)
                | IxExpr::Max(..) => None,
            };
            let shape = extents.iter().map(|&e| kernel.eval_ix(e, &leaf).expect("an extent") as usize).collect();
            tensors.push(Tensor { dtype: *dtype, shape, access: *access });
        }
        Built { kernel, info, tensors }
    }
}

/// An extent as it is declared.
fn extent(k: &Kernel, id: IxId) -> DimExpr {
    let two = |a, b, f: fn(Box<DimExpr>, Box<DimExpr>) -> DimExpr| f(Box::new(extent(k, a)), Box::new(extent(k, b)));
    match k.ix_expr(id) {
        IxExpr::Const(c) => DimExpr::Const(c as usize),
        IxExpr::Sym(s) => DimExpr::Sym(k.syms[s.0 as usize].name.clone()),
        IxExpr::Add(a, b) => two(a, b, DimExpr::Add),
        IxExpr::Sub(a, b) => two(a, b, DimExpr::Sub),
        IxExpr::Mul(a, b) => two(a, b, DimExpr::Mul),
        IxExpr::Div(a, b) => two(a, b, DimExpr::Div),
        IxExpr::Var(_) | IxExpr::Data(_) | IxExpr::Mod(..) | IxExpr::Min(..) | IxExpr::Max(..) => {
            panic!("an extent follows from dimensions")
        }
    }
}

/// Runs all of them with several sizes.
pub fn check(runner: &Runner) {
    let sizes = [1, 2, 7, 16, 33, 64];
    let all: Vec<Found> = FOUND.iter().flat_map(|&(name, text)| sizes.map(|size| Found { name, text, size })).collect();
    let outcomes = if all.is_empty() { vec![] } else { runner.batch(&all) };
    let wrong: Vec<String> = all
        .iter()
        .zip(outcomes)
        .filter_map(|(f, o)| match o {
            Outcome::Equal => None,
            Outcome::Refused(why) | Outcome::Failed(why) => Some(format!("{} with {}: {why}", f.name, f.size)),
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
