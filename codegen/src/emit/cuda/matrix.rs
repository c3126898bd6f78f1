//! Matrix products: every warp multiplies its share of the accumulator, piece by piece.

use super::Emitter;
use super::expr::Text;
use super::loops::Element;
use super::prelude::Snippet;
use crate::ir::{Base, BufferId, DType, Fragment, GemmScale, Space, ViewId};
use crate::pass::access::{Stride, defined_inside, strides};
use crate::pass::matrix::{Unit, unit};

/// The product being printed.
struct Product {
    m: usize,
    n: usize,
    depth: usize,
    share: Fragment,
    /// First row and column of the warp's share.
    row0: Text,
    col0: Text,
}

impl Product {
    fn atoms(&self) -> [usize; 2] {
        self.share.atoms
    }
    /// Registers of the share in each thread.
    fn registers(&self) -> usize {
        self.share.atoms[0] * self.share.atoms[1] * 4
    }
    fn overhangs(&self, axis: usize) -> bool {
        self.share.overhangs(axis, [self.m, self.n][axis])
    }
}

/// An operand: pointer to its first element and the distances of its axes.
struct Operand {
    base: String,
    strides: [Text; 2],
    dtype: DType,
}

impl Operand {
    fn element(&self, row: &Text, column: &Text) -> Text {
        let at = Text::add(&Text::mul(row, &self.strides[0]), &Text::mul(column, &self.strides[1]));
        Text::element(&self.base, &at)
    }
    fn address(&self, row: &Text, column: &Text) -> String {
        let at = Text::add(&Text::mul(row, &self.strides[0]), &Text::mul(column, &self.strides[1]));
        Text::offset(&self.base, &at)
    }
}

/// The sum of some texts.
fn sum(parts: &[Text]) -> Text {
    parts.iter().fold(Text::number(0), |s, p| Text::add(&s, p))
}

fn num(n: usize) -> Text {
    Text::number(n as i64)
}

impl Emitter<'_> {
    /// First row and column of the warp's share.
    pub fn share_start(&mut self, f: &Fragment) -> [Text; 2] {
        let [rows, columns] = f.warps;
        if rows * columns > 1 {
            self.used_warp = true;
        }
        let warp = |t: &str| Text::name(t);
        let high = if f.interleaved { 1 } else { f.atoms[0] } * Fragment::ATOM[0];
        let row = match (rows, columns) {
            (1, _) => num(0),
            (_, 1) => Text::mul(&warp("warp"), &num(high)),
            (_, c) => Text::mul(&warp(&format!("(warp / {c})")), &num(high)),
        };
        let column = match (rows, columns) {
            (_, 1) => num(0),
            (1, _) => Text::mul(&warp("warp"), &num(f.atoms[1] * Fragment::ATOM[1])),
            (_, c) => Text::mul(&warp(&format!("(warp % {c})")), &num(f.atoms[1] * Fragment::ATOM[1])),
        };
        [row, column]
    }

    /// Opens an unrolled loop, if it takes more than one round; gives its variable.
    fn unrolled(&mut self, wish: &str, count: usize, opened: &mut usize) -> Text {
        if count <= 1 {
            return num(0);
        }
        self.line("#pragma unroll");
        *opened += 1;
        self.open_with(wish, |i| format!("for (int {i} = 0; {i} < {count}; ++{i})"))
    }

    fn close_all(&mut self, opened: usize) {
        for _ in 0..opened {
            self.close();
        }
    }

    fn operand(&mut self, view: ViewId) -> Operand {
        let v = self.k.view(view);
        let name = match v.base {
            Base::Buffer(b) => self.buffer(b),
            Base::Param(p) => self.param(p),
        };
        let offset = self.ix(v.offset);
        let base = if offset.is_zero() { name } else { format!("({})", Text::offset(&name, &offset)) };
        let parts: Vec<Text> = strides(self.k, view)
            .into_iter()
            .map(|s| match s {
                Stride::Const(c) => Text::number(c),
                Stride::Index(id) => self.ix(id),
            })
            .collect();
        let at = |i: usize| parts.get(i).cloned().unwrap_or_else(|| num(0));
        Operand { base, strides: [at(0), at(1)], dtype: v.dtype }
    }

    /// `acc += a x b`, or `acc = a x b`.
    pub fn gemm(&mut self, a: ViewId, b: ViewId, acc: BufferId, set: bool, scales: Option<[GemmScale; 2]>) {
        self.phase += 1;
        self.ensure(acc);
        let (ea, eb) = (self.k.const_extents(a).unwrap_or_default(), self.k.const_extents(b).unwrap_or_default());
        let (m, depth, n) = (ea[0], ea[1], eb[1]);
        let share = Fragment::of(m, n, self.threads() / 32);
        self.used_warp = true;
        self.open("");
        let [row0, col0] = self.share_start(&share);
        let named = |this: &mut Self, wish: &str, t: Text| {
            if t.is_zero() {
                return t;
            }
            let name = this.names.declare(wish);
            this.line(format!("const int {name} = {};", t.s));
            Text::name(name)
        };
        let row0 = named(self, "row0", row0);
        let col0 = named(self, "col0", col0);
        let p = Product { m, n, depth, share, row0, col0 };
        let (left, right) = (self.operand(a), self.operand(b));

        // Where the products go: the accumulator's registers, or some of the op's own.
        let resident = self.k.buffer(acc).space == Space::Frag;
        let fresh = set || scales.is_some();
        let own = !resident || scales.is_some();
        let sums = if own { self.names.declare("part") } else { self.buffer(acc) };
        if own {
            let init = if fresh { " = {}" } else { "" };
            self.line(format!("float {sums}[{}]{init};", p.registers()));
        } else if set {
            let mut opened = 0;
            let i = self.unrolled("i", p.registers(), &mut opened);
            self.line(format!("{sums}[{}] = 0.0f;", i.s));
            self.close_all(opened);
        }
        if !resident && !fresh {
            self.each_shared(&p, acc, |_, at, element| format!("{sums}[{at}] = {element};"));
        }
        match unit(self.k, &self.ranges, a, b) {
            Unit::Pieces { left_by_k, right_by_k } => self.pieces(&p, &left, &right, &sums, left_by_k, right_by_k),
            Unit::Bytes => self.bytes(&p, &left, &right, &sums),
            Unit::Elements => self.elements(&p, &left, &right, &sums),
            Unit::Scalar => self.scalars(&p, &left, &right, &sums),
        }
        if let Some(scales) = &scales {
            let factors = self.factors(&p, scales);
            if resident {
                let mut opened = 0;
                let i = self.unrolled("i", p.atoms()[0], &mut opened);
                let j = self.unrolled("j", p.atoms()[1], &mut opened);
                let e = self.unrolled("e", 4, &mut opened);
                let at = p.register(&i, &j, &e).s;
                let name = self.buffer(acc);
                let old = if set { "0.0f".into() } else { format!("{name}[{at}]") };
                let f = scale_of(&factors, &i, &j, &e);
                self.line(format!("{name}[{at}] = __fmaf_rn({f}, {sums}[{at}], {old});"));
                self.close_all(opened);
            } else {
                self.each_shared(&p, acc, |(i, j, e), at, element| {
                    let old = if set { "0.0f" } else { element };
                    format!("{element} = __fmaf_rn({}, {sums}[{at}], {old});", scale_of(&factors, i, j, e))
                });
            }
        } else if !resident {
            self.each_shared(&p, acc, |_, at, element| format!("{element} = {sums}[{at}];"));
        }
        self.close();
    }

    /// A statement for each register and the shared element it stands for.
    fn each_shared(&mut self, p: &Product, acc: BufferId, f: impl Fn((&Text, &Text, &Text), &str, &str) -> String) {
        let name = self.buffer(acc);
        let pitch = self.k.buffer(acc).memory.as_ref().and_then(|m| m.strides.first().copied()).unwrap_or(p.n);
        let mut opened = 0;
        let i = self.unrolled("i", p.atoms()[0], &mut opened);
        let j = self.unrolled("j", p.atoms()[1], &mut opened);
        let e = self.unrolled("e", 4, &mut opened);
        let (row, column) = (self.names.declare("row"), self.names.declare("column"));
        let half = Text::mul(&Text::name(format!("({} / 2)", e.s)), &num(8));
        let r = sum(&[p.row0.clone(), Text::mul(&i, &num(16)), half, Text::name("lane / 4")]);
        let c = Text::name(format!("{} % 2", e.s));
        let c = sum(&[p.col0.clone(), Text::mul(&j, &num(8)), Text::name("lane % 4 * 2"), c]);
        self.line(format!("const int {row} = {}, {column} = {};", r.s, c.s));
        let at = p.register(&i, &j, &e).s;
        let element = format!("{name}[{row} * {pitch} + {column}]");
        let mut guards = vec![];
        if p.overhangs(0) {
            guards.push(format!("{row} < {}", p.m));
        }
        if p.overhangs(1) {
            guards.push(format!("{column} < {}", p.n));
        }
        let guard = if guards.is_empty() { String::new() } else { format!("if ({}) ", guards.join(" && ")) };
        let statement = f((&i, &j, &e), &at, &element);
        self.line(format!("{guard}{statement}"));
        self.close_all(opened);
    }

    /// An index that may lie behind the end, moved to the last one: what is computed there is never looked at.
    fn clamped(&mut self, x: Text, overhangs: bool, last: usize) -> Text {
        if !overhangs {
            return x;
        }
        self.need(Snippet::MinMax);
        Text::call("min_of<int>", &[&x, &num(last)])
    }

    /// Opens the loop over `k`.
    fn depth_loop(&mut self, depth: usize, step: usize, opened: &mut usize) -> Text {
        if depth <= step {
            return num(0);
        }
        let turns = depth.div_ceil(step);
        self.line(if turns <= 8 { "#pragma unroll".to_string() } else { "#pragma unroll 4".to_string() });
        *opened += 1;
        self.open_with("k", |k| {
            let next = if step == 1 { format!("++{k}") } else { format!("{k} += {step}") };
            format!("for (int {k} = 0; {k} < {depth}; {next})")
        })
    }

    /// Left fragments as whole pieces, `per` elements of a row each.
    fn left_pieces(&mut self, p: &Product, left: &Operand, by_k: bool, k: &Text, per: usize) -> String {
        let name = self.names.declare("x");
        self.line(format!("u32 {name}[{}][4];", p.atoms()[0]));
        let mut opened = 0;
        let i = self.unrolled("i", p.atoms()[0], &mut opened);
        let first = Text::add(&p.row0, &Text::mul(&i, &num(16)));
        let (load, row, column) = if by_k {
            let row = Text::add(&first, &Text::name("lane % 16"));
            let row = self.clamped(row, p.overhangs(0), p.m - 1);
            ("ldmatrix_x4", row, Text::add(k, &Text::name(format!("lane / 16 * {per}"))))
        } else {
            let column = Text::add(&first, &Text::name("lane / 8 % 2 * 8"));
            let column = self.clamped(column, p.overhangs(0), p.m - 8);
            let row = sum(&[k.clone(), Text::name("lane / 16 * 8"), Text::name("lane % 8")]);
            ("ldmatrix_x4_trans", column, row)
        };
        self.line(format!("{load}({name}[{}], {});", i.s, left.address(&row, &column)));
        self.close_all(opened);
        name
    }

    /// Right fragments as whole pieces, two neighbours at a time.
    fn right_pieces(&mut self, p: &Product, right: &Operand, by_k: bool, k: &Text, per: usize) -> String {
        let name = self.names.declare("y");
        let pairs = p.atoms()[1].div_ceil(2);
        self.line(format!("u32 {name}[{pairs}][4];"));
        let mut opened = 0;
        let j = self.unrolled("j", pairs, &mut opened);
        let over = p.overhangs(1) || !p.atoms()[1].is_multiple_of(2);
        let first = Text::add(&p.col0, &Text::mul(&j, &num(16)));
        let (load, row, column) = if by_k {
            let column = sum(&[first, Text::name("lane / 16 * 8"), Text::name("lane % 8")]);
            let column = self.clamped(column, over, p.n - 1);
            ("ldmatrix_x4", Text::add(k, &Text::name(format!("lane / 8 % 2 * {per}"))), column)
        } else {
            let column = Text::add(&first, &Text::name("lane / 16 * 8"));
            let column = self.clamped(column, over, p.n - 8);
            ("ldmatrix_x4_trans", Text::add(k, &Text::name("lane % 16")), column)
        };
        self.line(format!("{load}({name}[{}], {});", j.s, right.address(&row, &column)));
        self.close_all(opened);
        name
    }

    fn pieces(&mut self, p: &Product, left: &Operand, right: &Operand, sums: &str, left_by_k: bool, right_by_k: bool) {
        self.need(Snippet::Matrix);
        let mut opened = 0;
        let k = self.depth_loop(p.depth, 16, &mut opened);
        let x = self.left_pieces(p, left, left_by_k, &k, 8);
        let y = self.right_pieces(p, right, right_by_k, &k, 8);
        let function = if left.dtype == DType::Bf16 { "mma_bf16_16x8x16" } else { "mma_f16_16x8x16" };
        self.products(p, sums, |i, j| {
            format!("{function}({{}}, {x}[{i}], {y}[{j} / 2][{j} % 2 * 2], {y}[{j} / 2][{j} % 2 * 2 + 1]);")
        });
        self.close_all(opened);
    }

    /// One instruction for each piece of the share; `{}` stands for the piece's registers.
    fn products(&mut self, p: &Product, sums: &str, f: impl Fn(&str, &str) -> String) {
        let mut opened = 0;
        let i = self.unrolled("i", p.atoms()[0], &mut opened);
        let j = self.unrolled("j", p.atoms()[1], &mut opened);
        let at = p.register(&i, &j, &num(0));
        let piece = format!("reinterpret_cast<float (&)[4]>({sums}[{}])", at.s);
        let line = f(&i.s, &j.s).replace("{}", &piece);
        self.line(line);
        self.close_all(opened);
    }

    fn bytes(&mut self, p: &Product, left: &Operand, right: &Operand, sums: &str) {
        self.need(Snippet::Matrix);
        self.need(Snippet::Fragments);
        let mut opened = 0;
        let k = self.depth_loop(p.depth, 32, &mut opened);
        let x = self.left_pieces(p, left, true, &k, 16);
        let y = self.right_pieces(p, right, true, &k, 16);
        let (wx, wy) = (self.names.declare("xw"), self.names.declare("yw"));
        self.line(format!("u32 {wx}[{}][2][4];", p.atoms()[0]));
        let mut inner = 0;
        let i = self.unrolled("i", p.atoms()[0], &mut inner).s;
        self.line(format!("widen_left<{}>({wx}[{i}], {x}[{i}]);", format_name(left.dtype)));
        self.close_all(inner);
        let pairs = p.atoms()[1].div_ceil(2);
        self.line(format!("u32 {wy}[{pairs}][2][2][2];"));
        inner = 0;
        let j = self.unrolled("j", pairs, &mut inner).s;
        self.line(format!("widen_right<{}>({wy}[{j}], {y}[{j}]);", format_name(right.dtype)));
        self.close_all(inner);
        inner = 0;
        let h = self.unrolled("h", 2, &mut inner).s;
        self.products(p, sums, |i, j| {
            format!("mma_f16_bytes_16x8x16({{}}, {wx}[{i}][{h}], {wy}[{j} / 2][{j} % 2][{h}][0], {wy}[{j} / 2][{j} % 2][{h}][1]);")
        });
        self.close_all(inner);
        self.close_all(opened);
    }

    /// An element as the matrix unit wants it, zero outside.
    fn half(&mut self, o: &Operand, row: &Text, column: &Text, inside: &Option<Text>) -> Text {
        let e = o.element(row, column);
        let x = match o.dtype {
            DType::E4m3 | DType::E5m2 | DType::E2m1 => {
                self.need(Snippet::Fragments);
                Text::name(format!("widen_one<{}>({})", format_name(o.dtype), e.s))
            }
            _ => e,
        };
        match inside {
            Some(c) => Text::choose(c, &x, &num(0)),
            None => x,
        }
    }

    fn elements(&mut self, p: &Product, left: &Operand, right: &Operand, sums: &str) {
        self.need(Snippet::Matrix);
        let mut opened = 0;
        let k = self.depth_loop(p.depth, 16, &mut opened);
        let ragged = !p.depth.is_multiple_of(16);
        let (x, y) = (self.names.declare("x"), self.names.declare("y"));
        for (is_left, o, name, axis) in [(true, left, &x, 0), (false, right, &y, 1)] {
            let registers = if is_left { 4 } else { 2 };
            self.line(format!("u32 {name}[{}][{registers}];", p.atoms()[axis]));
            let mut inner = 0;
            let i = self.unrolled(if is_left { "i" } else { "j" }, p.atoms()[axis], &mut inner);
            let r = self.unrolled("r", registers, &mut inner);
            let (start, size) = if is_left { (&p.row0, 16) } else { (&p.col0, 8) };
            let (own, q) = (self.names.declare(if is_left { "row" } else { "column" }), self.names.declare("q"));
            let lower = if is_left { format!("{} % 2 * 8", r.s) } else { "0".into() };
            let at = sum(&[start.clone(), Text::mul(&i, &num(size)), Text::name(lower), Text::name("lane / 4")]);
            let step = if is_left { format!("{} / 2 * 8", r.s) } else { format!("{} * 8", r.s) };
            let depth = sum(&[k.clone(), Text::name(step), Text::name("lane % 4 * 2")]);
            self.line(format!("const int {own} = {}, {q} = {};", at.s, depth.s));
            let extent = if is_left { p.m } else { p.n };
            let exists = p.overhangs(axis).then(|| Text::less(&Text::name(own.as_str()), &num(extent)));
            let mut parts = vec![];
            for e in 0..2 {
                let d = Text::add(&Text::name(q.as_str()), &num(e));
                let mut inside = exists.clone();
                if ragged {
                    let c = Text::less(&d, &num(p.depth));
                    inside = Some(inside.map_or(c.clone(), |i| Text::both(&i, &c)));
                }
                let line = Text::name(own.as_str());
                let (row, column) = if is_left { (&line, &d) } else { (&d, &line) };
                let x = self.half(o, row, column, &inside);
                parts.push(format!("(u32)({})", x.s));
            }
            self.line(format!("{name}[{}][{}] = {} | {} << 16;", i.s, r.s, parts[0], parts[1]));
            self.close_all(inner);
        }
        let bf16 = crate::pass::matrix::unit_format(left.dtype) == Some(DType::Bf16);
        let function = if bf16 { "mma_bf16_16x8x16" } else { "mma_f16_16x8x16" };
        self.products(p, sums, |i, j| format!("{function}({{}}, {x}[{i}], {y}[{j}][0], {y}[{j}][1]);"));
        self.close_all(opened);
    }

    fn scalars(&mut self, p: &Product, left: &Operand, right: &Operand, sums: &str) {
        let mut opened = 0;
        let k = self.depth_loop(p.depth, 1, &mut opened);
        let (x, y) = (self.names.declare("x"), self.names.declare("y"));
        for (is_left, o, name, axis) in [(true, left, &x, 0), (false, right, &y, 1)] {
            let count = 2 * p.atoms()[axis];
            self.line(format!("float {name}[{count}];"));
            let mut inner = 0;
            let i = self.unrolled(if is_left { "i" } else { "j" }, count, &mut inner);
            let at = if is_left { p.row_of(&i) } else { p.column_of(&i) };
            let at = self.clamped(at, p.overhangs(axis), [p.m, p.n][axis] - 1);
            let (row, column) = if is_left { (&at, &k) } else { (&k, &at) };
            let e = o.element(row, column);
            let e = self.lift_f32(o.dtype, e);
            self.line(format!("{name}[{}] = {};", i.s, e.s));
            self.close_all(inner);
        }
        let mut inner = 0;
        let i = self.unrolled("i", p.atoms()[0], &mut inner);
        let j = self.unrolled("j", p.atoms()[1], &mut inner);
        let e = self.unrolled("e", 4, &mut inner);
        let at = p.register(&i, &j, &e).s;
        let (r, c) = (pair(&i, &e, " / 2"), pair(&j, &e, " % 2"));
        self.line(format!("{sums}[{at}] = __fmaf_rn({x}[{r}], {y}[{c}], {sums}[{at}]);"));
        self.close_all(inner);
        self.close_all(opened);
    }

    /// Factors of the thread's rows and columns.
    fn factors(&mut self, p: &Product, scales: &[GemmScale; 2]) -> [String; 2] {
        let mut names = [String::new(), String::new()];
        for (axis, s) in scales.iter().enumerate() {
            let wish = ["row_scale", "column_scale"][axis];
            let name = self.names.declare(wish);
            let count = 2 * p.atoms()[axis];
            self.line(format!("float {name}[{count}];"));
            let k = self.k;
            let mut e =
                Element::plain(vec![s.var], defined_inside(k, s.body), self.out.len(), self.names.depth(), self.depth);
            e.extents = vec![1];
            self.element = Some(e);
            let mut opened = 0;
            let i = self.unrolled("i", count, &mut opened);
            if opened == 0 {
                self.open("");
                opened = 1;
            }
            let at = if axis == 0 { p.row_of(&i) } else { p.column_of(&i) };
            let at = self.clamped(at, p.overhangs(axis), [p.m, p.n][axis] - 1);
            let var = self.names.declare(&k.ix_var(s.var).name.clone());
            self.line(format!("const int {var} = {};", at.s));
            self.index.insert(s.var, Text::name(var));
            self.block(s.body);
            let x = self.val(s.value);
            self.line(format!("{name}[{}] = {};", i.s, x.s));
            self.close_all(opened);
            self.element = None;
            names[axis] = name;
        }
        names
    }
}

impl Product {
    /// Number of the register of element `e` of piece `(i, j)`.
    fn register(&self, i: &Text, j: &Text, e: &Text) -> Text {
        let piece = Text::add(&Text::mul(i, &num(self.share.atoms[1])), j);
        Text::add(&Text::mul(&piece, &num(4)), e)
    }
    /// The thread's row with number `i`, two a piece.
    fn row_of(&self, i: &Text) -> Text {
        if i.is_zero() {
            return sum(&[self.row0.clone(), Text::name("lane / 4")]);
        }
        let half = Text::name(format!("{0} / 2 * 16 + {0} % 2 * 8", i.s));
        sum(&[self.row0.clone(), half, Text::name("lane / 4")])
    }
    /// The thread's column with number `i`, two a piece.
    fn column_of(&self, i: &Text) -> Text {
        let part = Text::name(format!("{0} / 2 * 8 + {0} % 2", i.s));
        sum(&[self.col0.clone(), part, Text::name("lane % 4 * 2")])
    }
}

/// Number of a row or column of a piece's element among the thread's.
fn pair(piece: &Text, e: &Text, part: &str) -> String {
    Text::add(&Text::mul(piece, &num(2)), &Text::name(format!("{}{part}", e.s))).s
}

fn scale_of(factors: &[String; 2], i: &Text, j: &Text, e: &Text) -> String {
    format!("{}[{}] * {}[{}]", factors[0], pair(i, e, " / 2"), factors[1], pair(j, e, " % 2"))
}

/// Prelude struct of a format of one byte.
fn format_name(d: DType) -> &'static str {
    match d {
        DType::E5m2 => "E5m2",
        DType::E2m1 => "E2m1",
        _ => "E4m3",
    }
}
