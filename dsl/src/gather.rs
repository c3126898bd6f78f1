//! Views whose rows are looked up in a table: `paged` caches and `rows` picked by an index tile.
//!
//! A row that the table does not name inside the tensor does not exist: it reads as zero and is not written.

use crate::dtype::{Bool, DType, I32, I64, U32};
use crate::index::IntoAnyIx;
use crate::scalar::V;
use crate::session::{Session, with};
use crate::tensor::Gm;
use crate::tile::{Space, Tile};
use kiln_codegen::ir::{CmpOp, Gather, IxId, Literal, Op, ValueId, View, ViewId};

/// What rows can be looked up in: a tensor view or tile of rank 1 of integers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a table of rows",
    label = "expected integers (I32, U32, I64) of rank 1",
    note = "one row of a table of rank 2 is `table.pick(i)`"
)]
pub trait Table: Copy {
    /// Its view.
    fn table(self) -> ViewId;
}
macro_rules! tables {
    ($($t:ident)*) => { $(
        impl<A> Table for Gm<$t, 1, A> {
            fn table(self) -> ViewId { self.view }
        }
        impl<S: Space> Table for Tile<$t, S, 1> {
            fn table(self) -> ViewId { self.view }
        }
    )* };
}
tables! { I32 U32 I64 }

/// Refuses a view whose first axis is looked up already, for ops that would need its stride.
pub(crate) fn not_gathered(s: &mut Session, view: ViewId, what: &str) {
    if s.b.kernel.view(view).gather.is_some() {
        s.error("B0507", format!("`{what}` of a view whose rows are looked up in a table")).help =
            Some(format!("apply `{what}` before `paged(..)` or `rows(..)`"));
    }
}

fn paged(s: &mut Session, view: ViewId, table: ViewId, page: usize) -> ViewId {
    not_gathered(s, view, "paged");
    let mut v = s.b.kernel.view(view).clone();
    // A page size that is only believed could let the last page be read past its end.
    let rows = s.b.kernel.ix_const(v.extents[1]);
    if rows != Some(page as i64) || page == 0 {
        let have = rows.map_or("a number of rows the launch gives".into(), |r| r.to_string());
        s.error("B0506", format!("a page of {page} rows in a tensor whose pages have {have}")).help =
            Some("declare the dimension of a page `fixed` and pass it here".into());
    }
    let (pages, page_stride) = (v.extents.remove(0), v.strides.remove(0));
    let size = s.b.ix_const(page.max(1) as i64);
    let entries = s.b.kernel.view(table).extents[0];
    v.extents[0] = s.b.ix_mul(entries, size);
    v.gather = Some(Gather::Paged { table, page: page.max(1), pages, page_stride });
    v.span = s.b.here();
    s.b.view(v)
}

fn rows(s: &mut Session, view: ViewId, rows: ViewId) -> ViewId {
    not_gathered(s, view, "rows");
    let mut v = s.b.kernel.view(view).clone();
    let count = v.extents[0];
    v.extents[0] = s.b.kernel.view(rows).extents[0];
    v.gather = Some(Gather::Rows { rows, count });
    v.span = s.b.here();
    s.b.view(v)
}

macro_rules! ranks {
    ($($n:literal $less:literal;)*) => { $(
        impl<T: DType, A> Gm<T, $n, A> {
            /// Pages `[pages, page, ..]` as one sequence of rows: row `i` is row `i % page` of page `table[i / page]`.
            #[track_caller]
            pub fn paged<I: Table>(self, table: I, page: usize) -> Gm<T, $less, A> {
                with(|s| Gm::of_view(paged(s, self.view, table.table(), page)))
            }
        }
    )* };
}
ranks! { 2 1; 3 2; 4 3; }

impl<T: DType, const N: usize, A> Gm<T, N, A> {
    /// The rows a table names: row `i` is row `table[i]` of this tensor.
    #[track_caller]
    pub fn rows<I: Table>(self, table: I) -> Gm<T, N, A> {
        with(|s| Gm::of_view(rows(s, self.view, table.table())))
    }

    /// True if there is a row `row`; of a gathered view, if the table names one for it. It may be data.
    #[track_caller]
    pub fn has_row<I: IntoAnyIx>(self, row: I) -> V<Bool> {
        let row = row.any_ix().id;
        with(|s| {
            let View { extents, gather, .. } = s.b.kernel.view(self.view).clone();
            let inside = within(s, row, extents[0]);
            let (table, entry, count) = match gather {
                None => return V::of_id(inside),
                Some(Gather::Rows { rows, count }) => (rows, row, count),
                Some(Gather::Paged { table, page, pages, .. }) => {
                    let size = s.b.ix_const(page as i64);
                    (table, s.b.ix_div(row, size), pages)
                }
            };
            let dtype = s.b.kernel.view(table).dtype;
            let bits = if dtype.bits() == 64 { u64::MAX } else { (1 << dtype.bits()) - 1 };
            let other = s.b.constant(Literal { dtype, bits });
            let found = s.b.push_value(dtype, |result| Op::LoadOr { result, view: table, index: vec![entry], other });
            let found = s.b.ix_data(found);
            let named = within(s, found, count);
            V::of_id(both(s, inside, named))
        })
    }
}

fn both(s: &mut Session, a: ValueId, b: ValueId) -> ValueId {
    let op = kiln_codegen::ir::BinaryOp::And;
    s.b.push_value(kiln_codegen::ir::DType::Bool, |result| Op::Binary { result, op, a, b })
}

/// `0 <= i < count`.
fn within(s: &mut Session, i: IxId, count: IxId) -> ValueId {
    let zero = s.b.ix_const(0);
    let mut compare =
        |op, a, b| s.b.push_value(kiln_codegen::ir::DType::Bool, |result| Op::CompareIndex { result, op, a, b });
    let (low, high) = (compare(CmpOp::Ge, i, zero), compare(CmpOp::Lt, i, count));
    both(s, low, high)
}
