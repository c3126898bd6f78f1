//! Element loops as instructions on memory (arch 2201).

use super::form::Local;
use super::lower::{Lower, Res};
use super::stage::Ub;
use super::tree::BufId;
use crate::ir::{BlockId, DType, IxVarId, OpId, ReduceOp, UnaryOp};

/// Lines that put `op(x)` into the first lanes of a tensor.
pub fn scalar_function(op: UnaryOp, name: &str, x: &str) -> Vec<String> {
    let b = "PipeBarrier<PIPE_V>();".to_string();
    let mut lines = vec![b.clone(), format!("Duplicate({name}, {x}, 8);"), b.clone()];
    match op {
        UnaryOp::Exp2 => {
            lines.extend([
                format!("Muls({name}, {name}, 0.6931471805599453f, 8);"),
                b,
                format!("Exp({name}, {name}, 8);"),
            ]);
        }
        UnaryOp::Log2 => {
            lines.extend([
                format!("Ln({name}, {name}, 8);"),
                b,
                format!("Muls({name}, {name}, 1.4426950408889634f, 8);"),
            ]);
        }
        UnaryOp::Sqrt => lines.push(format!("Sqrt({name}, {name}, 8);")),
        UnaryOp::Rsqrt => lines.extend([
            format!("Sqrt({name}, {name}, 8);"),
            b.clone(),
            format!("Duplicate({name}[8], 1.0f, 8);"),
            b,
            format!("Div({name}, {name}[8], {name}, 8);"),
        ]),
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Recip
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Floor
        | UnaryOp::Ceil => {}
    }
    lines
}

/// A statement that clears a buffer.
pub fn clear(l: &Lower<'_>, b: BufId, bytes: usize, _size: usize) -> String {
    let x = &l.bufs[b.0];
    let _ = x;
    format!("Clear({}, {});", l.tensor(b), bytes)
}

/// `parallel`.
pub fn element_loop(
    l: &mut Lower<'_>,
    id: OpId,
    _vars: &[(IxVarId, usize)],
    _body: BlockId,
    _local: &Local,
) -> Res<()> {
    Err(l.refuse(id, "no form on memory vectors yet", "choose ascend950"))
}

/// `reduce`.
#[allow(clippy::too_many_arguments)]
pub fn reduce(
    l: &mut Lower<'_>,
    id: OpId,
    _op: ReduceOp,
    _d: DType,
    _from: &Ub,
    _to: &Ub,
    _all: &[(IxVarId, usize)],
    _axis: usize,
) -> Res<()> {
    Err(l.refuse(id, "no form on memory vectors yet", "choose ascend950"))
}
