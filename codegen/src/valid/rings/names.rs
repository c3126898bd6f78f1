//! Names of index expressions and values that are the same in every role: a role has its own copy of the plain program's
//! ops, with ids of its own.

use crate::ir::effects::uses;
use crate::ir::{Base, Gather, IxExpr, IxId, IxVarId, Kernel, Op, OpId, ValueId, ViewId};
use std::collections::HashMap;

/// Names while a role's program is walked.
pub struct Names<'k> {
    k: &'k Kernel,
    /// Loop variables that are in scope.
    vars: HashMap<IxVarId, String>,
    /// Ops that define index variables.
    defs: HashMap<IxVarId, OpId>,
}

impl<'k> Names<'k> {
    pub fn new(k: &'k Kernel) -> Self {
        let mut defs = HashMap::new();
        for (n, node) in k.ops.iter().enumerate() {
            for v in uses(&node.op).defines_ix {
                defs.insert(v, OpId(n as u32));
            }
        }
        Names { k, vars: HashMap::new(), defs }
    }

    pub fn name(&mut self, var: IxVarId, name: String) {
        self.vars.insert(var, name);
    }

    pub fn index(&self, e: IxId) -> String {
        let pair = |op: &str, a, b| format!("({}{op}{})", self.index(a), self.index(b));
        match self.k.ix_expr(e) {
            IxExpr::Const(c) => c.to_string(),
            IxExpr::Sym(s) => format!("s{}", s.0),
            IxExpr::Var(v) => match (self.vars.get(&v), self.defs.get(&v)) {
                (Some(n), _) => n.clone(),
                (None, Some(&op)) => self.op(op),
                (None, None) => format!("v{}", v.0),
            },
            IxExpr::Data(v) => self.value(v),
            IxExpr::Add(a, b) => pair("+", a, b),
            IxExpr::Sub(a, b) => pair("-", a, b),
            IxExpr::Mul(a, b) => pair("*", a, b),
            IxExpr::Div(a, b) => pair("/", a, b),
            IxExpr::Mod(a, b) => pair("%", a, b),
            IxExpr::Min(a, b) => pair("<", a, b),
            IxExpr::Max(a, b) => pair(">", a, b),
        }
    }

    pub fn value(&self, v: ValueId) -> String {
        match self.k.value(v).def {
            Some(op) => self.op(op),
            None => format!("p{}", v.0),
        }
    }

    /// A pure op by what it computes; any other by itself.
    fn op(&self, id: OpId) -> String {
        let op = &self.k.op(id).op;
        let u = uses(op);
        let pure = u.blocks.is_empty() && u.buffers.is_empty() && !matches!(op, Op::Sched(_) | Op::Atomic { .. });
        if !pure {
            return format!("#{}", id.0);
        }
        if let Op::Const { value, .. } = op {
            return format!("{}:{:x}", value.dtype, value.bits);
        }
        let mut parts: Vec<String> = u.values.iter().map(|&v| self.value(v)).collect();
        parts.extend(u.indices.iter().map(|&i| self.index(i)));
        parts.extend(u.views.iter().map(|&v| self.view(v)));
        parts.extend(u.defines.iter().map(|&v| self.k.value(v).dtype.to_string()));
        format!("{}({})", op.name(), parts.join(","))
    }

    pub fn view(&self, id: ViewId) -> String {
        let v = self.k.view(id);
        let base = match v.base {
            Base::Param(p) => format!("p{}", p.0),
            Base::Buffer(b) => format!("b{}", b.0),
        };
        let list = |ids: &[IxId]| ids.iter().map(|&i| self.index(i)).collect::<Vec<_>>().join(",");
        let guards: Vec<String> = v.guards.iter().map(|g| format!("{}<{}", self.index(g.0), self.index(g.1))).collect();
        let gather = v.gather.map_or(String::new(), |g| match g {
            Gather::Paged { table, page, .. } => format!("paged {page} {}", self.view(table)),
            Gather::Rows { rows, .. } => format!("rows {}", self.view(rows)),
        });
        format!(
            "{base}[{}+{}/{} {}{gather}]",
            self.index(v.offset),
            list(&v.strides),
            list(&v.extents),
            guards.join(",")
        )
    }
}
