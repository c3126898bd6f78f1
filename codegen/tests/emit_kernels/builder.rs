//! A builder with short forms, for the kernels beside it.

use kiln_codegen::ir::*;

/// A builder with short forms.
pub struct K {
    pub b: Builder,
    line: u32,
}

/// Extent of a parameter's axis: a dimension by name, or a number.
#[derive(Clone, Copy)]
pub enum D {
    S(&'static str, i64),
    C(i64),
}

impl K {
    pub fn new(name: &str, warps: usize) -> K {
        let mut b = Builder::new(name, at(1));
        b.kernel.warps = warps;
        K { b, line: 1 }
    }
    /// Next source line.
    pub fn next(&mut self) {
        self.line += 1;
        self.b.at(at(self.line));
    }
    pub fn dim(&mut self, d: D) -> IxId {
        match d {
            D::C(c) => self.b.ix_const(c),
            D::S(name, multiple_of) => {
                let known = self.b.kernel.syms.iter().position(|s| s.name == name);
                let id = match known {
                    Some(i) => SymId(i as u32),
                    None => self.b.sym(Sym {
                        name: name.into(),
                        kind: SymKind::Dim,
                        multiple_of,
                        min: 0,
                        max: i32::MAX as i64,
                    }),
                };
                self.b.ix_sym(id)
            }
        }
    }
    pub fn tensor(&mut self, name: &str, dtype: DType, access: Access, dims: &[D]) -> ViewId {
        let extents: Vec<IxId> = dims.iter().map(|&d| self.dim(d)).collect();
        let mut strides = vec![];
        let mut s = self.b.ix_const(1);
        for &e in extents.iter().rev() {
            strides.insert(0, s);
            s = self.b.ix_mul(s, e);
        }
        let p = self.b.param(name, ParamKind::Tensor { dtype, access, extents, strides, align_bytes: 16, tma: false });
        self.b.param_view(p)
    }
    pub fn scalar(&mut self, name: &str, dtype: DType) -> ValueId {
        let value = self.b.free_value(dtype);
        self.b.param(name, ParamKind::Scalar { dtype, value });
        value
    }
    pub fn tile(&mut self, name: &str, dtype: DType, extents: &[usize], space: Space) -> (BufferId, ViewId) {
        let buffer = self.b.new_buffer(name, dtype, extents, space, false);
        self.b.push(Op::Alloc { buffer });
        (buffer, self.b.buffer_view(buffer))
    }
    pub fn frag(&mut self, name: &str, dtype: DType, extents: &[usize]) -> (BufferId, ViewId) {
        self.tile(name, dtype, extents, Space::Frag)
    }
    /// A view of the same tile with other extents.
    pub fn reshape(&mut self, view: ViewId, extents: &[usize]) -> ViewId {
        let mut v = self.b.kernel.view(view).clone();
        v.extents = extents.iter().map(|&e| self.b.ix_const(e as i64)).collect();
        v.strides = build::row_major(extents).into_iter().map(|s| self.b.ix_const(s as i64)).collect();
        self.b.view(v)
    }
    /// Row `at` of a rank-2 view.
    pub fn row(&mut self, view: ViewId, at: IxId) -> ViewId {
        let mut v = self.b.kernel.view(view).clone();
        let (extent, stride) = (v.extents.remove(0), v.strides.remove(0));
        let skip = self.b.ix_mul(at, stride);
        v.offset = self.b.ix_add(v.offset, skip);
        v.guards.push((at, extent));
        self.b.view(v)
    }
    pub fn f32(&mut self, x: f32) -> ValueId {
        self.b.constant(Literal::f32(x))
    }
    pub fn i32(&mut self, x: i32) -> ValueId {
        self.b.constant(Literal::i32(x))
    }
    pub fn un(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        let d = self.b.kernel.value(x).dtype;
        self.b.push_value(d, |result| Op::Unary { result, op, x })
    }
    pub fn bin(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        let d = self.b.kernel.value(a).dtype;
        self.b.push_value(d, |result| Op::Binary { result, op, a, b })
    }
    pub fn cmp(&mut self, op: CmpOp, a: ValueId, b: ValueId) -> ValueId {
        self.b.push_value(DType::Bool, |result| Op::Compare { result, op, a, b })
    }
    pub fn cast(&mut self, d: DType, x: ValueId) -> ValueId {
        if self.b.kernel.value(x).dtype == d { x } else { self.b.push_value(d, |result| Op::Cast { result, x }) }
    }
    pub fn load(&mut self, view: ViewId, index: &[IxId]) -> ValueId {
        let d = self.b.kernel.view(view).dtype;
        let index = index.to_vec();
        self.b.push_value(d, |result| Op::Load { result, view, index })
    }
    pub fn store(&mut self, view: ViewId, index: &[IxId], value: ValueId) {
        self.b.push(Op::Store { view, index: index.to_vec(), value, checked: false });
    }
    pub fn c(&mut self, c: i64) -> IxId {
        self.b.ix_const(c)
    }
    pub fn add(&mut self, a: IxId, b: IxId) -> IxId {
        self.b.ix_add(a, b)
    }
    pub fn mul(&mut self, a: IxId, b: i64) -> IxId {
        let c = self.c(b);
        self.b.ix_mul(a, c)
    }
    pub fn div(&mut self, a: IxId, b: i64) -> IxId {
        let c = self.c(b);
        self.b.ix_div(a, c)
    }
    /// Grid of `ceil(dim / tile)` blocks; gives the first index of a block's tile.
    pub fn grid1(&mut self, dim: IxId, tile: i64) -> IxId {
        let t = self.c(tile);
        let n = self.b.ix_div_ceil(dim, t);
        let v = self.b.grid(&[n])[0];
        let v = self.b.ix_var(v);
        self.mul(v, tile)
    }
    /// Grid of tiles of a matrix; gives the first row and column of a block's tile.
    pub fn grid2(&mut self, m: D, n: D, bm: usize, bn: usize) -> (IxId, IxId) {
        let (dm, dn) = (self.dim(m), self.dim(n));
        let (tm, tn) = (self.c(bm as i64), self.c(bn as i64));
        let (gm, gn) = (self.b.ix_div_ceil(dm, tm), self.b.ix_div_ceil(dn, tn));
        let g = self.b.grid(&[gn, gm]);
        let (x, y) = (self.b.ix_var(g[0]), self.b.ix_var(g[1]));
        (self.mul(y, bm as i64), self.mul(x, bn as i64))
    }
    pub fn tensor_of(&mut self, name: &str, dtype: DType, access: Access, extents: &[IxId]) -> ViewId {
        let mut strides = vec![];
        let mut s = self.b.ix_const(1);
        for &e in extents.iter().rev() {
            strides.insert(0, s);
            s = self.b.ix_mul(s, e);
        }
        let extents = extents.to_vec();
        let p = self.b.param(name, ParamKind::Tensor { dtype, access, extents, strides, align_bytes: 16, tma: false });
        self.b.param_view(p)
    }
    pub fn element_vars(&mut self, names: &[&str], extents: &[usize]) -> (Vec<IxVarId>, Vec<IxId>) {
        let lo = self.c(0);
        let vars: Vec<_> = names
            .iter()
            .zip(extents)
            .map(|(n, &e)| {
                let hi = self.c(e as i64 - 1);
                self.b.new_ix_var(n, IxVarKind::Element, Some(lo), Some(hi))
            })
            .collect();
        let ids = vars.iter().map(|&v| self.b.ix_var(v)).collect();
        (vars, ids)
    }
    pub fn parallel(&mut self, names: &[&str], extents: &[usize], f: impl FnOnce(&mut K, &[IxId])) {
        self.next();
        let (vars, ids) = self.element_vars(names, extents);
        let here = self.b.here();
        let body = self.b.open();
        f(self, &ids);
        self.b.close();
        self.b.at(self.b.kernel.span_of(here).clone());
        self.b.push(Op::Parallel { vars, extents: extents.to_vec(), body, distribution: None });
    }
    pub fn for_loop(&mut self, name: &str, lo: IxId, hi: IxId, f: impl FnOnce(&mut K, IxId)) {
        self.pipeline(name, lo, hi, 1, f);
    }
    pub fn pipeline(&mut self, name: &str, lo: IxId, hi: IxId, stages: usize, f: impl FnOnce(&mut K, IxId)) {
        self.next();
        let one = self.c(1);
        let last = self.b.ix_sub(hi, one);
        let var = self.b.new_ix_var(name, IxVarKind::Loop, Some(lo), Some(last));
        let id = self.b.ix_var(var);
        let body = self.b.open();
        f(self, id);
        self.b.close();
        self.b.push(Op::For { var, lo, hi, body, stages });
    }
    pub fn reduce(&mut self, op: ReduceOp, name: &str, src: ViewId, axis: usize) -> ViewId {
        self.next();
        let mut extents = self.b.kernel.const_extents(src).expect("tiles have constant extents");
        extents.remove(axis);
        let d = self.b.kernel.view(src).dtype;
        let (dst, view) = self.frag(name, d, &extents);
        self.b.push(Op::Reduce { op, src, dst, axis, order: None });
        view
    }
    pub fn copy(&mut self, src: ViewId, s: &[IxId], dst: ViewId, d: &[IxId], extents: &[usize]) {
        self.next();
        let region = |view, start: &[IxId]| Region { view, start: start.to_vec() };
        self.b.push(Op::Copy { src: region(src, s), dst: region(dst, d), extents: extents.to_vec() });
    }
    /// A rank-2 view with its axes exchanged.
    pub fn t(&mut self, view: ViewId) -> ViewId {
        let mut v = self.b.kernel.view(view).clone();
        v.extents.reverse();
        v.strides.reverse();
        self.b.view(v)
    }
    pub fn gemm(&mut self, a: ViewId, b: ViewId, acc: BufferId, set: bool) {
        self.next();
        self.b.push(Op::Gemm { a, b, acc, set, scales: None });
    }
    pub fn gemm_scaled(
        &mut self,
        a: ViewId,
        b: ViewId,
        acc: BufferId,
        row: impl FnOnce(&mut K, IxId) -> ValueId,
        column: impl FnOnce(&mut K, IxId) -> ValueId,
    ) {
        self.next();
        let extents = self.b.kernel.buffer(acc).extents.clone();
        let (vars, ids) = self.element_vars(&["i", "j"], &extents);
        let here = self.b.here();
        let body = self.b.open();
        let value = row(self, ids[0]);
        self.b.close();
        let first = GemmScale { var: vars[0], body, value };
        let body = self.b.open();
        let value = column(self, ids[1]);
        self.b.close();
        let second = GemmScale { var: vars[1], body, value };
        self.b.at(self.b.kernel.span_of(here).clone());
        self.b.push(Op::Gemm { a, b, acc, set: false, scales: Some([first, second]) });
    }
    pub fn fill(&mut self, dst: ViewId, value: ValueId) {
        self.next();
        self.b.push(Op::Fill { dst, value });
    }
    pub fn done(self) -> Kernel {
        self.b.finish().expect("scopes are closed")
    }
}

fn at(line: u32) -> Span {
    Span { file: "tests/emit_kernels.rs".into(), line, column: 5, frames: vec![], label: None }
}
