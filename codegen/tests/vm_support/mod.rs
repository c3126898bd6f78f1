//! Shorthand for building and running kernels by hand in tests of the VM.
#![allow(dead_code, reason = "each test file uses its part")]

use kiln_codegen::abi::{Arg, TensorView};
use kiln_codegen::diag::Diagnostic;
use kiln_codegen::host_memory::HostMemory;
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::*;
use kiln_codegen::valid::Facts;
use kiln_codegen::vm::{self, Options, Report};
use std::sync::Arc;

/// A kernel under construction. All tails count as expected unless `no_guards` is set.
pub struct Kit {
    pub b: Builder,
    pub no_guards: bool,
}

impl Kit {
    pub fn new(name: &str) -> Kit {
        Kit { b: Builder::new(name, Span::unknown()), no_guards: false }
    }
    pub fn dim(&mut self, name: &str) -> IxId {
        let s = self.b.sym(Sym { name: name.into(), kind: SymKind::Dim, multiple_of: 1, min: 0, max: i32::MAX as i64 });
        self.b.ix_sym(s)
    }
    fn tensor(&mut self, name: &str, dtype: DType, extents: &[IxId], access: Access) -> ViewId {
        let mut strides = vec![self.b.ix_const(1); extents.len()];
        for i in (0..extents.len().saturating_sub(1)).rev() {
            strides[i] = self.b.ix_mul(strides[i + 1], extents[i + 1]);
        }
        let p = self.b.param(
            name,
            ParamKind::Tensor { dtype, access, extents: extents.to_vec(), strides, align_bytes: 16, tma: false },
        );
        self.b.param_view(p)
    }
    pub fn input(&mut self, name: &str, dtype: DType, extents: &[IxId]) -> ViewId {
        self.tensor(name, dtype, extents, Access::In)
    }
    pub fn output(&mut self, name: &str, dtype: DType, extents: &[IxId]) -> ViewId {
        self.tensor(name, dtype, extents, Access::Out)
    }
    pub fn inout(&mut self, name: &str, dtype: DType, extents: &[IxId]) -> ViewId {
        self.tensor(name, dtype, extents, Access::InOut)
    }
    pub fn grid1(&mut self, n: IxId) -> IxId {
        let v = self.b.grid(&[n])[0];
        self.b.ix_var(v)
    }
    /// A grid of `ceil(n / size)` blocks; the first index of the block.
    pub fn blocks_of(&mut self, n: IxId, size: i64) -> IxId {
        let s = self.b.ix_const(size);
        let g = self.b.ix_div_ceil(n, s);
        let v = self.grid1(g);
        self.b.ix_mul(v, s)
    }
    pub fn alloc(&mut self, buffer: BufferId) {
        self.b.push(Op::Alloc { buffer });
    }
    pub fn tile_no_alloc(&mut self, name: &str, dtype: DType, extents: &[usize]) -> (BufferId, ViewId) {
        let t = self.b.new_buffer(name, dtype, extents, Space::Frag, false);
        (t, self.b.buffer_view(t))
    }
    pub fn tile(&mut self, name: &str, dtype: DType, extents: &[usize], space: Space) -> (BufferId, ViewId) {
        let t = self.b.new_buffer(name, dtype, extents, space, false);
        self.alloc(t);
        (t, self.b.buffer_view(t))
    }
    pub fn view_of(
        &mut self,
        base: ViewId,
        ext: &[IxId],
        strides: &[IxId],
        offset: IxId,
        guards: Vec<(IxId, IxId)>,
    ) -> ViewId {
        let dtype = self.b.kernel.view(base).dtype;
        let v = self.retype(base, dtype, ext, strides, offset);
        self.b.kernel.views[v.0 as usize].guards = guards;
        v
    }
    pub fn retype(&mut self, base: ViewId, dtype: DType, ext: &[IxId], strides: &[IxId], offset: IxId) -> ViewId {
        let v = self.b.kernel.view(base).clone();
        self.b.view(View { dtype, extents: ext.to_vec(), strides: strides.to_vec(), offset, guards: vec![], ..v })
    }
    pub fn elements(&mut self, extents: &[usize]) -> (Vec<IxVarId>, Vec<IxId>) {
        let zero = self.b.ix_const(0);
        let mut vars = vec![];
        let mut ix = vec![];
        for &e in extents {
            let hi = self.b.ix_const(e as i64 - 1);
            let v = self.b.new_ix_var("i", IxVarKind::Element, Some(zero), Some(hi));
            vars.push(v);
            ix.push(self.b.ix_var(v));
        }
        (vars, ix)
    }
    pub fn parallel(&mut self, extents: &[usize], f: impl FnOnce(&mut Kit, &[IxId])) {
        let (vars, ix) = self.elements(extents);
        let body = self.b.open();
        f(self, &ix);
        self.b.close();
        self.b.push(Op::Parallel { vars, extents: extents.to_vec(), body, distribution: None });
    }
    pub fn spread(&mut self, lo: IxId, hi: IxId, f: impl FnOnce(&mut Kit, IxId)) {
        let var = self.b.new_ix_var("i", IxVarKind::Element, Some(lo), None);
        let body = self.b.open();
        let ix = self.b.ix_var(var);
        f(self, ix);
        self.b.close();
        self.b.push(Op::Spread { var, lo, hi, body });
    }
    pub fn reduce_region(
        &mut self,
        op: ReduceOp,
        extents: &[usize],
        order: Order,
        f: impl FnOnce(&mut Kit, &[IxId]) -> ValueId,
    ) -> ValueId {
        let (vars, ix) = self.elements(extents);
        let body = self.b.open();
        let value = f(self, &ix);
        self.b.close();
        let dtype = self.b.kernel.value(value).dtype;
        let extents = extents.to_vec();
        self.b.push_value(dtype, |result| Op::ReduceRegion {
            op,
            vars,
            extents,
            body,
            value,
            result,
            order: Some(order),
        })
    }
    pub fn find_first(&mut self, extent: usize, f: impl FnOnce(&mut Kit, IxId) -> ValueId) -> IxId {
        let (vars, ix) = self.elements(&[extent]);
        let body = self.b.open();
        let cond = f(self, ix[0]);
        self.b.close();
        let result = self.b.new_ix_var("found", IxVarKind::Data, None, None);
        self.b.push(Op::FindFirst { var: vars[0], extent, body, cond, result });
        self.b.ix_var(result)
    }
    pub fn for_loop(&mut self, lo: IxId, hi: IxId, f: impl FnOnce(&mut Kit, IxId)) {
        let var = self.b.new_ix_var("j", IxVarKind::Loop, Some(lo), None);
        let body = self.b.open();
        let ix = self.b.ix_var(var);
        f(self, ix);
        self.b.close();
        self.b.push(Op::For { var, lo, hi, body, stages: 3 });
    }
    pub fn looped(&mut self, f: impl FnOnce(&mut Kit)) {
        let body = self.b.open();
        f(self);
        self.b.close();
        self.b.push(Op::Loop { body });
    }
    pub fn when(&mut self, cond: ValueId, f: impl FnOnce(&mut Kit)) {
        let then = self.b.open();
        f(self);
        self.b.close();
        let els = self.b.open();
        self.b.close();
        self.b.push(Op::If { cond, then, els, results: vec![] });
    }
    pub fn if_join(
        &mut self,
        cond: ValueId,
        f: impl FnOnce(&mut Kit) -> ValueId,
        g: impl FnOnce(&mut Kit) -> ValueId,
    ) -> ValueId {
        let then = self.b.open();
        let a = f(self);
        self.b.close();
        let els = self.b.open();
        let b = g(self);
        self.b.close();
        let result = self.b.free_value(self.b.kernel.value(a).dtype);
        let results = vec![IfResult::Value { result, then: a, els: b }];
        let id = self.b.push(Op::If { cond, then, els, results });
        self.b.kernel.values[result.0 as usize].def = Some(id);
        result
    }
    pub fn gemm(&mut self, a: ViewId, b: ViewId, acc: BufferId, set: bool) {
        self.b.push(Op::Gemm { a, b, acc, set, scales: None });
    }
    /// A matrix product whose row and column factors are vectors of tiles or tensors.
    pub fn gemm_scaled(&mut self, a: ViewId, b: ViewId, acc: BufferId, set: bool, factors: [ViewId; 2]) {
        let extents = self.b.kernel.buffer(acc).extents.clone();
        let scales = [0, 1].map(|side| {
            let (vars, ix) = self.elements(&extents[side..=side]);
            let body = self.b.open();
            let value = self.load(factors[side], &ix);
            let value = self.cast(value, DType::F32);
            self.b.close();
            GemmScale { var: vars[0], body, value }
        });
        self.b.push(Op::Gemm { a, b, acc, set, scales: Some(scales) });
    }
    /// The transposed view of rank 2.
    pub fn t(&mut self, view: ViewId) -> ViewId {
        let mut v = self.b.kernel.view(view).clone();
        v.extents.reverse();
        v.strides.reverse();
        self.b.view(v)
    }
    /// Rows and columns `start..start + extents` of a view of rank 2.
    pub fn window(&mut self, view: ViewId, start: [IxId; 2], extents: [usize; 2]) -> ViewId {
        let mut v = self.b.kernel.view(view).clone();
        for (axis, (s, e)) in start.into_iter().zip(extents).enumerate() {
            let step = self.b.ix_mul(s, v.strides[axis]);
            v.offset = self.b.ix_add(v.offset, step);
            v.extents[axis] = self.b.ix_const(e as i64);
        }
        self.b.view(v)
    }
    /// Logical rows of `[pages, page, d]` through a table.
    pub fn paged(&mut self, base: ViewId, table: ViewId, page: usize) -> ViewId {
        let v = self.b.kernel.view(base).clone();
        let entries = self.b.kernel.view(table).extents[0];
        let rows = self.b.ix_const(page as i64);
        let rows = self.b.ix_mul(entries, rows);
        let gather = Gather::Paged { table, page, pages: v.extents[0], page_stride: v.strides[0] };
        self.b.view(View {
            extents: vec![rows, v.extents[2]],
            strides: v.strides[1..].to_vec(),
            gather: Some(gather),
            ..v
        })
    }
    /// Rows of a tensor of rank 2 by number.
    pub fn rows(&mut self, base: ViewId, rows: ViewId) -> ViewId {
        let v = self.b.kernel.view(base).clone();
        let entries = self.b.kernel.view(rows).extents[0];
        let gather = Gather::Rows { rows, count: v.extents[0] };
        self.b.view(View { extents: vec![entries, v.extents[1]], gather: Some(gather), ..v })
    }
    pub fn load(&mut self, view: ViewId, index: &[IxId]) -> ValueId {
        let dtype = self.b.kernel.view(view).dtype;
        let index = index.to_vec();
        self.b.push_value(dtype, |result| Op::Load { result, view, index })
    }
    pub fn load_or(&mut self, view: ViewId, index: &[IxId], other: ValueId) -> ValueId {
        let dtype = self.b.kernel.view(view).dtype;
        let index = index.to_vec();
        self.b.push_value(dtype, |result| Op::LoadOr { result, view, index, other })
    }
    pub fn store(&mut self, view: ViewId, index: &[IxId], value: ValueId) {
        self.b.push(Op::Store { view, index: index.to_vec(), value, checked: false });
    }
    pub fn put(&mut self, view: ViewId, index: &[IxId], value: ValueId) {
        self.b.push(Op::Store { view, index: index.to_vec(), value, checked: true });
    }
    pub fn copy(&mut self, src: ViewId, from: &[IxId], dst: ViewId, to: &[IxId], extents: &[usize]) {
        self.b.push(Op::Copy {
            src: Region { view: src, start: from.to_vec() },
            dst: Region { view: dst, start: to.to_vec() },
            extents: extents.to_vec(),
        });
    }
    pub fn cast(&mut self, x: ValueId, to: DType) -> ValueId {
        self.b.push_value(to, |result| Op::Cast { result, x })
    }
    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        let dtype = self.b.kernel.value(x).dtype;
        self.b.push_value(dtype, |result| Op::Unary { result, op, x })
    }
    pub fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let dtype = self.b.kernel.value(a).dtype;
        self.b.push_value(dtype, |result| Op::Binary { result, op, a, b })
    }
    pub fn compare(&mut self, op: CmpOp, a: ValueId, b: ValueId) -> ValueId {
        self.b.push_value(DType::Bool, |result| Op::Compare { result, op, a, b })
    }
    pub fn index_value(&mut self, index: IxId, dtype: DType) -> ValueId {
        self.b.push_value(dtype, |result| Op::IndexValue { result, index })
    }
    pub fn clamp(&mut self, value: ValueId, lo: IxId, hi: IxId) -> IxId {
        let var = self.b.new_ix_var("c", IxVarKind::Data, Some(lo), Some(hi));
        self.b.push(Op::ClampIndex { var, value, lo, hi });
        self.b.ix_var(var)
    }
    pub fn var(&mut self, init: ValueId) -> BufferId {
        let dtype = self.b.kernel.value(init).dtype;
        let var = self.b.new_buffer("v", dtype, &[], Space::Var, false);
        self.b.push(Op::VarNew { var, init });
        var
    }
    pub fn get(&mut self, var: BufferId) -> ValueId {
        let dtype = self.b.kernel.buffer(var).dtype;
        self.b.push_value(dtype, |result| Op::VarGet { result, var })
    }
    pub fn set(&mut self, var: BufferId, value: ValueId) {
        self.b.push(Op::VarSet { var, value });
    }
    pub fn ix_var(&mut self, init: IxId) -> BufferId {
        let var = self.b.new_buffer("p", DType::I64, &[], Space::Var, true);
        self.b.push(Op::IxVarNew { var, init });
        var
    }
    pub fn ix_get(&mut self, var: BufferId) -> IxId {
        let result = self.b.new_ix_var("p", IxVarKind::Data, None, None);
        self.b.push(Op::IxVarGet { result, var });
        self.b.ix_var(result)
    }
    pub fn ix_set(&mut self, var: BufferId, index: IxId) {
        self.b.push(Op::IxVarSet { var, index });
    }
    fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        if !self.no_guards {
            for id in 0..self.b.kernel.ops.len() {
                facts.guards.insert(OpId(id as u32), vec![true; 8]);
            }
        }
        facts
    }
}

pub fn tensor(dtype: DType, shape: &[usize], values: &[f64]) -> Arg {
    let t = HostTensor::from_f64(dtype, shape, values);
    Arg::Tensor(TensorView::contiguous(dtype, shape, Arc::new(HostMemory::from_bytes(&t.data))))
}

pub fn zeros(dtype: DType, shape: &[usize]) -> Arg {
    let n: usize = shape.iter().product();
    Arg::Tensor(TensorView::contiguous(dtype, shape, Arc::new(HostMemory::zeroed(dtype.bytes(n)))))
}

pub fn host(v: &TensorView) -> HostTensor {
    HostTensor { dtype: v.dtype, shape: v.shape.clone(), data: v.memory.host().unwrap().to_bytes() }
}

pub fn values(a: &Arg) -> Vec<f64> {
    let Arg::Tensor(v) = a else { panic!("not a tensor") };
    host(v).to_f64()
}

pub fn try_run(k: &Kit, syms: &[i64], args: &[Arg], options: Options) -> Result<Report, Vec<Diagnostic>> {
    assert_eq!(k.b.depth(), 1, "open scopes");
    vm::run(&k.b.kernel, &k.facts(), syms, args, &options)
}

pub fn run_with(k: &Kit, syms: &[i64], args: &[Arg], options: Options) -> Report {
    match try_run(k, syms, args, options) {
        Ok(r) => r,
        Err(all) => panic!("{}", all.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n")),
    }
}

pub fn run(k: &Kit, syms: &[i64], args: &[Arg]) -> Report {
    run_with(k, syms, args, Options::default())
}

/// Runs as it is, then sanitized: no findings, and the same bits.
pub fn run_clean(k: &Kit, syms: &[i64], args: &[Arg]) -> Report {
    let before: Vec<Option<HostTensor>> =
        args.iter().map(|a| if let Arg::Tensor(v) = a { Some(host(v)) } else { None }).collect();
    run(k, syms, args);
    let plain: Vec<Vec<f64>> = args.iter().map(values).collect();
    for (a, b) in args.iter().zip(&before) {
        if let (Arg::Tensor(v), Some(t)) = (a, b) {
            v.memory.host().unwrap().write(0, &t.data);
        }
    }
    let r = run_with(k, syms, args, Options { sanitize: true, ..Options::default() });
    let text: Vec<String> = r.findings.iter().map(Diagnostic::to_string).collect();
    assert!(r.findings.is_empty(), "{}", text.join("\n"));
    for (p, a) in plain.iter().zip(args) {
        for (x, y) in p.iter().zip(&values(a)) {
            assert!(x == y || x.is_nan() && y.is_nan(), "sanitized run differs: {x} and {y}");
        }
    }
    r
}

/// The sum an order defines, word for word.
pub fn ordered_sum(order: Order, x: &[f32]) -> f32 {
    let mut lanes: Vec<Option<f32>> = vec![None; order.lanes];
    for (e, &v) in x.iter().enumerate() {
        let l = (e / order.per_lane) % order.lanes;
        lanes[l] = Some(lanes[l].map_or(v, |a| a + v));
    }
    let mut level: Vec<f32> = lanes.into_iter().flatten().collect();
    while level.len() > 1 {
        level = level.chunks(2).map(|c| if c.len() == 2 { c[0] + c[1] } else { c[0] }).collect();
    }
    level[0]
}
