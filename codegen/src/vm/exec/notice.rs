//! What the sanitizer notices while a block runs, in words.

use super::*;

impl Worker<'_> {
    #[expect(clippy::too_many_arguments, reason = "the pieces of one access")]
    pub(super) fn check_indices(
        &mut self,
        fr: &Lanes,
        node: &Node,
        access: &Access,
        valid: Mask,
        indices: &[Vec<i64>],
        address: &[i64],
        outside: Option<(usize, usize)>,
    ) {
        let at = |lane: usize| {
            let rank = access.checks.len();
            let all: Vec<String> = indices.iter().take(rank).map(|v| v[lane].to_string()).collect();
            format!("[{}]", all.join(", "))
        };
        if let Some((lane, axis)) = outside {
            let (i, e) = (indices[axis][lane], self.scalar(fr, &access.checks[axis].extent));
            let place = at(lane);
            let name = self.name(access.place).to_string();
            let d = Diagnostic::error(
                self.shared.kernel,
                node.span,
                "S0101",
                format!("index outside `{name}`: {name}{place}, but axis {axis} has {e} elements"),
            )
            .label(format!("index {i} on axis {axis}{}", where_text(self.iteration(fr, lane))))
            .note(self.block_text(), None)
            .help("use `get_or` for reads and `put` for writes that may fall outside, or bound the loop");
            self.find("S0101", node, node, d);
        }
        if !self.shared.program.wide {
            let bytes = access.dtype.bits().div_ceil(8) as i64;
            for (lane, offset) in address[..fr.n].iter().enumerate() {
                if valid.has(lane) && offset.saturating_mul(bytes) > i32::MAX as i64 {
                    let name = self.name(access.place).to_string();
                    let d = Diagnostic::error(
                        self.shared.kernel,
                        node.span,
                        "S0106",
                        format!("index overflow: {name}{} lies past 2^31 bytes, but offsets have 32 bits", at(lane)),
                    )
                    .help("build the kernel with wide indices");
                    self.find("S0106", node, node, d);
                    break;
                }
            }
        }
    }

    pub(super) fn iteration(&self, fr: &Lanes, lane: usize) -> Option<Vec<i64>> {
        fr.first?;
        let s = fr.segs.iter().rev().find(|s| s.lane <= lane)?;
        let mut x: Vec<i64> = s.x[..fr.rank].to_vec();
        if let Some(last) = x.last_mut() {
            *last += (lane - s.lane) as i64;
        }
        Some(x)
    }

    pub(super) fn block_text(&self) -> String {
        let p = self.shared.program;
        let ids: Vec<String> = p.block_ids.iter().map(|&at| self.env[at].to_string()).collect();
        format!("in block ({})", ids.join(", "))
    }

    pub(super) fn find(&mut self, code: &'static str, a: &Node, b: &Node, d: Diagnostic) {
        if let Some(s) = &mut self.shadow
            && s.first(code, a.op, b.op)
        {
            s.findings.push(d);
        }
    }

    /// Records touches of elements and reports what they reveal.
    pub(super) fn touch(&mut self, fr: &Lanes, node: &Node, access: &Access, r: &Resolved, mask: Mask, kind: Kind) {
        let Some(mut shadow) = self.shadow.take() else { return };
        let base = match access.place {
            Place::Param(p) => self.param_bits(p),
            Place::Tile(t) => self.shared.program.tiles[t].dtype.bits(),
        };
        let bits = access.dtype.bits();
        for lane in 0..fr.n {
            if !(mask.has(lane) && r.valid.has(lane)) {
                continue;
            }
            let bit = r.address[lane] as usize * bits;
            let iteration = fr.first.map(|f| (f + lane) as u32);
            for cell in bit / base..=(bit + bits - 1) / base {
                let Some(hit) = shadow.touch(access.place, cell, kind, iteration, node.op) else { continue };
                self.report(&mut shadow, fr, node, access, lane, cell, kind, hit);
                break;
            }
        }
        self.shadow = Some(shadow);
    }

    #[expect(clippy::too_many_arguments, reason = "the pieces of one finding")]
    pub(super) fn report(
        &self,
        shadow: &mut Shadow,
        fr: &Lanes,
        node: &Node,
        access: &Access,
        lane: usize,
        cell: usize,
        kind: Kind,
        hit: Hit,
    ) {
        let kernel = self.shared.kernel;
        let name = self.name(access.place);
        let whose = where_text(self.iteration(fr, lane));
        match hit {
            Hit::Uninitialised => {
                if shadow.first("S0102", node.op, node.op) {
                    let made = match access.place {
                        Place::Param(p) => kernel.params[p].span,
                        Place::Tile(t) => kernel.buffers[t].span,
                    };
                    let d = Diagnostic::error(
                        kernel,
                        node.span,
                        "S0102",
                        format!("`{name}` is read before it is written: element {cell}"),
                    )
                    .label(format!("reads element {cell}{whose}"))
                    .note(format!("`{name}` is declared"), Some(kernel.span_of(made).clone()))
                    .note(self.block_text(), None)
                    .help("fill the tile first, or read only what was written; an output holds nothing before the kernel writes it");
                    shadow.findings.push(d);
                }
            }
            Hit::Conflict { op, iteration, kind: other } => {
                if shadow.first("S0103", node.op, op) {
                    let verb = |k: Kind| match k {
                        Kind::Read => "reads",
                        Kind::Write => "writes",
                        Kind::Atomic => "updates",
                    };
                    let there = kernel.span_of(kernel.op(op).span).clone();
                    let me = fr.first.map_or(0, |f| f + lane);
                    let d = Diagnostic::error(
                        kernel,
                        node.span,
                        "S0103",
                        format!("two iterations of one body touch element {cell} of `{name}`"),
                    )
                    .label(format!("iteration {me} {} it{whose}", verb(kind)))
                    .note(format!("iteration {iteration} {} it", verb(other)), Some(there))
                    .note(self.block_text(), None)
                    .help("iterations of one body are unordered: give each its own element, use an atomic, or split the body in two");
                    shadow.findings.push(d);
                }
            }
        }
    }

    pub(super) fn param_bits(&self, p: usize) -> usize {
        match &self.shared.kernel.params[p].kind {
            crate::ir::ParamKind::Tensor { dtype, .. } => dtype.bits(),
            crate::ir::ParamKind::Scalar { .. } | crate::ir::ParamKind::Absent => 8,
        }
    }

    #[inline(always)]
    pub(super) fn numeric(&mut self, fr: &Lanes, node: &Node, mask: &Mask, dst: Reg, operands: &[Reg]) {
        if self.shadow.is_some() {
            self.first_strange(fr, node, mask, dst, operands);
        }
    }

    #[cold]
    fn first_strange(&mut self, fr: &Lanes, node: &Node, mask: &Mask, dst: Reg, operands: &[Reg]) {
        let Some(mut shadow) = self.shadow.take() else { return };
        if dst.class == Class::F {
            for lane in 0..fr.n {
                let v = fr.regs.f[dst.slot][lane];
                if v.is_finite() || !mask.has(lane) {
                    continue;
                }
                let fresh = operands.iter().all(|o| o.class != Class::F || fr.regs.f[o.slot][lane].is_finite());
                if fresh && shadow.first("S0151", node.op, node.op) {
                    let what = if v.is_nan() { "NaN" } else { "infinity" };
                    let values: Vec<String> = operands
                        .iter()
                        .filter(|o| o.class == Class::F)
                        .map(|o| format!("{:e}", fr.regs.f[o.slot][lane]))
                        .collect();
                    let name = self.shared.kernel.op(node.op).op.name();
                    let d = Diagnostic::error(
                        self.shared.kernel,
                        node.span,
                        "S0151",
                        format!("{what} appears first at `{name}` of {}", values.join(" and ")),
                    )
                    .warning()
                    .label(format!("{what}{}", where_text(self.iteration(fr, lane))))
                    .note(self.block_text(), None)
                    .help("expected for masked scores; otherwise check ranges before this operation");
                    shadow.messages.push(d);
                    break;
                }
            }
        }
        self.shadow = Some(shadow);
    }

    /// A product of finite numbers that is none.
    pub(super) fn strange_product(&mut self, node: &Node, what: &str, [row, column]: [usize; 2]) {
        let d = Diagnostic::error(
            self.shared.kernel,
            node.span,
            "S0151",
            format!("{what} appears first at `gemm`, in row {row} and column {column}"),
        )
        .warning()
        .note(self.block_text(), None)
        .help("scale the operands before the product if that is not meant");
        if let Some(s) = &mut self.shadow
            && s.first("S0151", node.op, node.op)
        {
            s.messages.push(d);
        }
    }

    /// An operand picked outside its tile, which then counts as zeros.
    pub(super) fn absent_operand(&mut self, node: &Node, access: &Access) {
        let name = self.name(access.place).to_string();
        let d = Diagnostic::error(
            self.shared.kernel,
            node.span,
            "S0101",
            format!("index outside `{name}`: the picked operand does not exist"),
        )
        .note(self.block_text(), None)
        .help("bound the index that picks it");
        self.find("S0101", node, node, d);
    }

    pub(super) fn saturation(&mut self, fr: &Lanes, node: &Node, mask: &Mask, to: DType, x: Reg) {
        let Some(shadow) = &mut self.shadow else { return };
        if !matches!(to, DType::E4m3 | DType::E5m2 | DType::E2m1) || x.class != Class::F {
            return;
        }
        let limit = to.max_finite() as f32;
        let over = (0..fr.n).filter(|&l| mask.has(l) && fr.regs.f[x.slot][l].abs() > limit).count();
        let all = (0..fr.n).filter(|&l| mask.has(l)).count();
        let count = shadow.saturated.entry(node.op).or_default();
        count.0 += over as u64;
        count.1 += all as u64;
    }

    pub(super) fn division(&mut self, fr: &Lanes, node: &Node, mask: &Mask, b: Reg) {
        let zero = |lane: usize| match b.class {
            Class::F => false,
            Class::I => fr.regs.i[b.slot][lane] == 0,
            Class::L => fr.regs.l[b.slot][lane] == 0,
        };
        if let Some(lane) = (0..fr.n).find(|&l| mask.has(l) && zero(l)) {
            let d = Diagnostic::error(self.shared.kernel, node.span, "S0107", "an integer is divided by zero")
                .label(format!("the divisor is 0{}", where_text(self.iteration(fr, lane))))
                .note(self.block_text(), None)
                .help("the result is 0 on every target; test the divisor first if that is not meant");
            self.find("S0107", node, node, d);
        }
    }
}

pub(super) fn where_text(x: Option<Vec<i64>>) -> String {
    match x {
        None => String::new(),
        Some(x) => {
            let all: Vec<String> = x.iter().map(i64::to_string).collect();
            format!(" in iteration ({})", all.join(", "))
        }
    }
}
