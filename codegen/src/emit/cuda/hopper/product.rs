//! Products by the matrix unit of a warp group: 64 rows at a time, straight into the accumulator, or with scales into
//! registers of their own that are added to it afterwards.
//!
//! Loops over registers are flat and fully unrolled: an accumulator that is indexed at run time would lie in memory.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::prelude::Snippet;
use super::super::prelude::wgmma::Wgmma;
use super::scale::Columns;
use crate::ir::{BufferId, Fragment, GemmScale, OpId, RingId, ViewId};

/// Rows of a matrix instruction.
pub const ROWS: usize = 64;
/// Bytes of a row of an operand's panel.
const ROW_BYTES: i64 = 128;

/// An operand in shared memory.
struct Operand {
    /// Descriptor of the first step of the first rows.
    name: String,
    /// Steps along k within a panel, and what one adds to the descriptor.
    steps: usize,
    step: i64,
    /// What a panel adds.
    panel: i64,
    /// K runs across the rows.
    across: bool,
    /// What 64 rows of a right operand that lies along K add, or 64 columns of one that lies across.
    part: i64,
}

impl Operand {
    fn at(&self, wave: Option<&Text>, step: &Text, count: usize) -> String {
        let mut t = Text::name(self.name.clone());
        if let Some(w) = wave {
            t = Text::add(&t, &Text::mul(w, &Text::number(ROWS as i64 * ROW_BYTES / 16)));
        }
        if step.is_zero() {
            return t.s;
        }
        if count <= self.steps {
            return Text::add(&t, &Text::mul(step, &Text::number(self.step))).s;
        }
        let panel = Text::mul(&Text::over(step, self.steps), &Text::number(self.panel));
        let inside = Text::name(format!("{} % {}", step.s, self.steps));
        let inside = Text::mul(&inside, &Text::number(self.step));
        Text::add(&Text::add(&t, &panel), &inside).s
    }
}

/// A product.
struct Product {
    unit: Wgmma,
    left: Operand,
    right: Operand,
    /// Times 64 rows.
    waves: usize,
    /// Instructions along k.
    steps: usize,
    /// Registers of 64 rows.
    registers: usize,
    /// Instructions beside each other, each with its columns.
    parts: usize,
}

/// Registers that the assembler wants beside the accumulator of an instruction, in what a block's threads have on average:
/// budgets of roles do not count there.
const BESIDE: usize = 26;
/// Registers a block's threads share.
const REGISTERS: usize = 65536;

impl Emitter<'_> {
    fn wgmma_operand(&mut self, view: ViewId, k_axis: usize, wish: &str) -> Option<Operand> {
        let v = self.k.view(view);
        let size = (v.dtype.bits() / 8) as i64;
        let unit = self.k.ix_const(v.strides[k_axis])? == 1;
        let (buffer, m) = self.layout(view)?;
        let (swizzle, p) = (m.swizzle, self.panels(buffer)?);
        if swizzle != Some((3, 4, 3)) || p.width * size != ROW_BYTES {
            return None;
        }
        let bytes = self.shared_bytes_to(view, &[])?;
        if bytes.alignment() % 1024 != 0 {
            return None;
        }
        let across = !unit;
        if across && (k_axis == 1 || size != 2 || self.k.ix_const(v.strides[1 - k_axis])? != 1) {
            return None;
        }
        let mut constant = bytes.clone();
        let moving = bytes.moving().over(16)?.text();
        constant = super::Linear::constant(constant.number);
        let address = self.shared_address(&constant).s;
        let tile = match across {
            false => format!("wgmma_tile({address})"),
            true => format!("wgmma_tile_across({address}, {})", p.rows * ROW_BYTES),
        };
        let text = Text::add(
            &Text::name(tile),
            &if moving.is_zero() { moving } else { Text::cast("u32", &Text::name(format!("({})", moving.s))) },
        );
        let name = self.names.declare(wish);
        self.line(format!("const u64 {name} = {};", text.s));
        let panel = p.rows * ROW_BYTES / 16;
        Some(match across {
            false => {
                let part = ROWS as i64 * ROW_BYTES / 16;
                Operand { name, steps: (ROW_BYTES / 32) as usize, step: 2, panel, across, part }
            }
            true => Operand { name, steps: usize::MAX, step: 16 * ROW_BYTES / 16, panel: 0, across, part: panel },
        })
    }

    /// `acc += a x b`, or `acc = a x b`; `release`s what the operands lie in.
    pub fn wgmma(
        &mut self,
        id: OpId,
        [a, b]: [ViewId; 2],
        acc: BufferId,
        [set, hold]: [bool; 2],
        scales: Option<[GemmScale; 2]>,
        release: &[(RingId, u32)],
    ) {
        self.phase += 1;
        self.ensure(acc);
        let (ea, eb) = (self.k.const_extents(a).unwrap_or_default(), self.k.const_extents(b).unwrap_or_default());
        let (&[m, depth], &[_, n]) = (&ea[..], &eb[..]) else { return };
        let share = Fragment::warp_group(m, n);
        let held = self.k.buffer(acc).distribution.as_ref().and_then(|d| d.fragment);
        let dtype = self.k.view(a).dtype;
        // Wide instructions are cut where a block of many threads has too few registers on average.
        let even = REGISTERS / self.block_threads().max(1);
        let parts = if scales.is_none() && n / 2 + BESIDE > even && n.is_multiple_of(128) { 2 } else { 1 };
        let unit =
            Wgmma::new(n / parts, dtype).filter(|w| self.k.view(b).dtype == dtype && depth.is_multiple_of(w.k()));
        let Some(mut unit) = unit.filter(|_| m.is_multiple_of(ROWS) && held == Some(share)) else {
            let what =
                format!("a warp group's product of {dtype}[{m}, {depth}] and {}[{depth}, {n}]", self.k.view(b).dtype);
            self.refuse(id, what);
            return;
        };
        self.need(Snippet::Wgmma);
        self.used_warp = true;
        self.open("");
        let operands = (self.wgmma_operand(a, 1, "a_tile"), self.wgmma_operand(b, 0, "b_tile"));
        let (Some(left), Some(right)) = operands else {
            self.refuse(id, "an operand of a warp group's product that is not in swizzled rows of 128 bytes".into());
            return;
        };
        let panels_hold = |o: &Operand, this: &Self, v: ViewId| {
            depth / unit.k() <= o.steps || this.layout(v).is_some_and(|(_, m)| m.panel.is_some())
        };
        if !panels_hold(&left, self, a) || !panels_hold(&right, self, b) {
            self.refuse(id, "an operand of a warp group's product whose rows are longer than 128 bytes".into());
            return;
        }
        if right.across {
            let Some(w) = unit.with_k_across() else { return };
            unit = w;
        }
        self.frame.products.insert(unit);
        let waves = m / ROWS;
        let registers = n / 2;
        let columns = scales.as_ref().map(|s| self.columns(&s[1], n));
        let held_columns = match (&scales, &columns) {
            (Some(s), Some(c)) => Some(self.column_factors(&s[1], c, n, !release.is_empty())),
            _ => None,
        };
        let p = Product { unit, left, right, waves, steps: depth / unit.k(), registers, parts };
        let name = self.buffer(acc);
        match (&scales, &columns, &held_columns) {
            (Some(s), Some(c), Some(h)) => self.scaled(&p, &name, set, (s, c, h), release),
            _ => self.straight(&p, &name, [set, hold], release),
        }
        self.close();
    }

    /// All rows at once, into the accumulator.
    fn straight(&mut self, p: &Product, acc: &str, [set, hold]: [bool; 2], release: &[(RingId, u32)]) {
        self.line(format!("wgmma_pin({acc});"));
        self.line("wgmma_begin();");
        let wave = (p.waves > 1).then(|| {
            self.line("#pragma unroll");
            self.open_with("wave", |w| format!("for (int {w} = 0; {w} < {}; ++{w})", p.waves))
        });
        let own = p.registers / p.parts;
        let d: Vec<String> = (0..p.parts)
            .map(|n| match &wave {
                None if p.parts == 1 => acc.to_string(),
                None => format!("reinterpret_cast<float (&)[{own}]>({acc}[{}])", n * own),
                Some(w) => {
                    let at = Text::mul(w, &Text::number(p.registers as i64));
                    let at = Text::add(&at, &Text::number((n * own) as i64));
                    format!("reinterpret_cast<float (&)[{own}]>({acc}[{}])", at.s)
                }
            })
            .collect();
        self.steps(p, &d, wave.as_ref(), set);
        if wave.is_some() {
            self.close();
        }
        self.line("wgmma_commit();");
        if hold {
            self.frame.held.push(acc.to_string());
            return;
        }
        self.line("wgmma_wait<0>();");
        for held in std::mem::take(&mut self.frame.held) {
            self.line(format!("wgmma_pin({held});"));
        }
        self.line(format!("wgmma_pin({acc});"));
        self.early_releases(release, None, 1);
    }

    /// Waits for products that went on; their accumulators are ordinary registers again.
    pub fn wgmma_wait(&mut self, pending: usize) {
        self.line(format!("wgmma_wait<{pending}>();"));
        let done = self.frame.held.len().saturating_sub(pending);
        for held in self.frame.held.drain(..done).collect::<Vec<_>>() {
            self.line(format!("wgmma_pin({held});"));
        }
    }

    /// 64 rows after 64 rows into registers of their own, each added to the accumulator with its factors.
    fn scaled(
        &mut self,
        p: &Product,
        acc: &str,
        set: bool,
        (scales, columns, held): (&[GemmScale; 2], &Columns, &str),
        release: &[(RingId, u32)],
    ) {
        let part = self.names.declare("part");
        self.line(format!("float {part}[{}];", p.registers));
        let wave = (p.waves > 1).then(|| {
            self.line("#pragma unroll");
            self.open_with("wave", |w| format!("for (int {w} = 0; {w} < {}; ++{w})", p.waves))
        });
        let first = wave.as_ref().map_or(Text::number(0), |w| Text::mul(w, &Text::number(p.registers as i64)));
        let rows = self.row_factors(&scales[0], wave.as_ref());
        self.line(format!("wgmma_pin({part});"));
        self.line("wgmma_begin();");
        self.steps(p, std::slice::from_ref(&part), wave.as_ref(), true);
        self.line("wgmma_commit();");
        self.line("wgmma_wait<0>();");
        self.line(format!("wgmma_pin({part});"));
        self.early_releases(release, wave.as_ref(), p.waves);
        self.promote([&part, &rows, held], acc, &first, set, (&scales[1], columns), 2 * p.registers);
        if wave.is_some() {
            self.close();
        }
    }

    /// The instructions of 64 rows.
    fn steps(&mut self, p: &Product, d: &[String], wave: Option<&Text>, fresh: bool) {
        let each = 2 * p.registers / p.parts / 64;
        let call = |this: &mut Self, step: &Text, add: &str| {
            let (x, y) = (p.left.at(wave, step, p.steps), p.right.at(None, step, p.steps));
            for (n, d) in d.iter().enumerate() {
                let y = Text::add(&Text::name(y.clone()), &Text::number((n * each) as i64 * p.right.part)).s;
                this.call(&p.unit.name(), &[d.clone(), x.clone(), y, add.to_string()]);
            }
        };
        if p.steps == 1 {
            call(self, &Text::number(0), if fresh { "0" } else { "1" });
            return;
        }
        self.line("#pragma unroll");
        let step = self.open_with("step", |s| format!("for (int {s} = 0; {s} < {}; ++{s})", p.steps));
        let add = if fresh { format!("{} != 0", step.s) } else { "1".into() };
        call(self, &step, &add);
        self.close();
    }

    /// Releases once the last wave has read its operands.
    fn early_releases(&mut self, release: &[(RingId, u32)], wave: Option<&Text>, waves: usize) {
        if release.is_empty() {
            return;
        }
        if let Some(w) = wave {
            self.open(&format!("if ({} == {})", w.s, waves - 1));
        }
        for &(ring, part) in release {
            self.release(ring, part, false);
        }
        if wave.is_some() {
            self.close();
        }
    }

    /// `acc += row * column * part`, 8 columns at a time.
    fn promote(
        &mut self,
        [part, rows, columns]: [&str; 3],
        acc: &str,
        first: &Text,
        set: bool,
        (scale, kind): (&GemmScale, &Columns),
        n: usize,
    ) {
        self.line("#pragma unroll");
        let c = self.open_with("c", |c| format!("for (int {c} = 0; {c} < {}; ++{c})", n / 8));
        let piece = |e: usize| Text::add(&Text::mul(&c, &Text::number(4)), &Text::number(e as i64));
        let factors: Vec<String> = match kind {
            Columns::One => vec![columns.to_string(); 2],
            Columns::Quotients { by, unit, count, .. } => {
                // A quotient changes only at multiples of `unit`.
                let at = match unit {
                    8 => format!("{} * 8", c.s),
                    u => format!("{} * 8 / {u} * {u}", c.s),
                };
                let mut text = format!("{columns}[{}]", count - 1);
                for q in (0..count - 1).rev() {
                    let edge = if q == 0 { "edge".to_string() } else { format!("edge + {}", by * q as i64) };
                    text = format!("{at} < {edge} ? {columns}[{q}] : {text}");
                }
                let name = self.names.declare("column_scale_c");
                self.line(format!("const float {name} = {text};"));
                vec![name; 2]
            }
            Columns::Pieces { unit } if !columns.is_empty() => {
                let unit = if super::scale::holds_pieces(n, *unit) { *unit } else { 8 };
                let at = if unit == 8 { c.s.clone() } else { format!("{} * 8 / {unit}", c.s) };
                vec![format!("{columns}[{at}]"); 2]
            }
            Columns::Each if !columns.is_empty() => (0..2)
                .map(|e| format!("{columns}[{}]", Text::add(&Text::mul(&c, &Text::number(2)), &Text::number(e)).s))
                .collect(),
            Columns::Pieces { .. } => {
                let at = Text::mul(&c, &Text::number(8));
                vec![self.named_factor(scale, &at); 2]
            }
            Columns::Each => (0..2)
                .map(|e| {
                    let at = Text::add(&Text::mul(&c, &Text::number(8)), &Text::name("lane % 4 * 2"));
                    self.named_factor(scale, &Text::add(&at, &Text::number(e)))
                })
                .collect(),
        };
        let mut scale_names: Vec<(String, String)> = vec![];
        for e in 0..4 {
            let product = format!("{rows}[{}] * {}", e / 2, factors[e % 2]);
            let name = match scale_names.iter().find(|s| s.0 == product) {
                Some(s) => s.1.clone(),
                None => {
                    let name = self.names.declare("f");
                    self.line(format!("const float {name} = {product};"));
                    scale_names.push((product, name.clone()));
                    name
                }
            };
            let at = Text::add(first, &piece(e)).s;
            let old = if set { "0.0f".to_string() } else { format!("{acc}[{at}]") };
            self.line(format!("{acc}[{at}] = __fmaf_rn({name}, {part}[{}], {old});", piece(e).s));
        }
        self.close();
    }
}
