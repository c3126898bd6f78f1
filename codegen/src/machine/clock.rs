//! Vector clocks: what an actor knows to be over.
//!
//! An actor is a thread or an asynchronous queue. Its time counts synchronisations, not accesses. After a barrier or a
//! warp-wide operation all participants know the same, so they share one vector and keep only their own time apart; a
//! rendezvous of a warp then costs one copy instead of 32.
//!
//! Besides ordinary order a clock keeps what is visible to the async proxy, through which bulk copies and matrix instructions
//! see shared memory: a write becomes visible to it by a fence of the writer or of someone who is ordered after it.

use std::rc::Rc;

/// Number of an actor within a block.
pub type Actor = u16;

/// Knowledge of one actor.
#[derive(Clone, Debug)]
pub struct Clock {
    actor: Actor,
    own: u32,
    known: Rc<Vec<u32>>,
    fenced: Rc<Vec<u32>>,
}

impl Clock {
    /// Clock of an actor that has seen nothing.
    pub fn new(actor: Actor, nothing: &Rc<Vec<u32>>) -> Self {
        Clock { actor, own: 1, known: Rc::clone(nothing), fenced: Rc::clone(nothing) }
    }

    /// The actor.
    pub fn actor(&self) -> Actor {
        self.actor
    }

    /// Its current time; accesses are stamped with it.
    pub fn now(&self) -> u32 {
        self.own
    }

    /// True if this actor knows that `actor`'s time `time` is over, or is that actor.
    pub fn knows(&self, actor: Actor, time: u32) -> bool {
        actor == self.actor || self.known.get(actor as usize).is_some_and(|&t| t >= time)
    }

    /// Learns that `actor`'s time `time` is over.
    pub fn learn(&mut self, actor: Actor, time: u32) {
        if !self.knows(actor, time) {
            let v = Rc::make_mut(&mut self.known);
            grow(v, actor);
            v[actor as usize] = time;
        }
    }

    /// True if what `actor` did up to `time` is visible to the async proxy for operations of this actor.
    pub fn fenced(&self, actor: Actor, time: u32) -> bool {
        self.fenced.get(actor as usize).is_some_and(|&t| t >= time)
    }

    /// Makes all that this actor knows visible to the async proxy, and starts a new time.
    pub fn fence(&mut self) {
        let mut all = (*self.known).clone();
        join(&mut all, &self.fenced);
        grow(&mut all, self.actor);
        all[self.actor as usize] = self.own;
        self.fenced = Rc::new(all);
        self.own += 1;
    }

    /// Hands over what this actor knows, but not what it did itself.
    pub fn share(&self, to: &mut Bundle) {
        join(&mut to.known, &self.known);
        join(&mut to.fenced, &self.fenced);
        to.memo = None;
    }

    /// Hands over what this actor knows and did, and starts a new time.
    pub fn release(&mut self, to: &mut Bundle) {
        join(&mut to.known, &self.known);
        grow(&mut to.known, self.actor);
        to.known[self.actor as usize] = to.known[self.actor as usize].max(self.own);
        join(&mut to.fenced, &self.fenced);
        to.memo = None;
        self.own += 1;
    }

    /// Takes over what was handed to a bundle.
    pub fn acquire(&mut self, from: &mut Bundle) {
        if let Some(m) = &from.memo
            && Rc::ptr_eq(&m.before.0, &self.known)
            && Rc::ptr_eq(&m.before.1, &self.fenced)
        {
            (self.known, self.fenced) = m.after.clone();
            return;
        }
        let before = (Rc::clone(&self.known), Rc::clone(&self.fenced));
        join(Rc::make_mut(&mut self.known), &from.known);
        if !from.fenced.is_empty() {
            join(Rc::make_mut(&mut self.fenced), &from.fenced);
        }
        from.memo = Some(Memo { before, after: (Rc::clone(&self.known), Rc::clone(&self.fenced)) });
    }

    /// All of `clocks` meet: each then knows what any of them did before, and starts a new time.
    pub fn meet<'a>(clocks: impl IntoIterator<Item = &'a mut Clock>) {
        let clocks: Vec<&mut Clock> = clocks.into_iter().collect();
        let Some(first) = clocks.first() else { return };
        let mut all = (*first.known).clone();
        let mut seen = Rc::clone(&first.known);
        let mut fenced = Rc::clone(&first.fenced);
        for c in &clocks[1..] {
            // Lanes of a warp nearly always share their vector already.
            if !Rc::ptr_eq(&seen, &c.known) {
                join(&mut all, &c.known);
                seen = Rc::clone(&c.known);
            }
            if !Rc::ptr_eq(&fenced, &c.fenced) {
                join(Rc::make_mut(&mut fenced), &c.fenced);
            }
        }
        for c in &clocks {
            grow(&mut all, c.actor);
            all[c.actor as usize] = c.own;
        }
        let all = Rc::new(all);
        for c in clocks {
            c.known = Rc::clone(&all);
            c.fenced = Rc::clone(&fenced);
            c.own += 1;
        }
    }
}

/// What actors hand over where they need not be at the same time: at an mbarrier, or to those who wait for a barrier.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    known: Vec<u32>,
    fenced: Vec<u32>,
    memo: Option<Memo>,
}

/// Lanes of a warp take over the same from the same; the second one need not compute it.
#[derive(Clone, Debug)]
struct Memo {
    before: (Rc<Vec<u32>>, Rc<Vec<u32>>),
    after: (Rc<Vec<u32>>, Rc<Vec<u32>>),
}

impl Bundle {
    /// Adds that `actor`'s time `time` is over.
    pub fn learn(&mut self, actor: Actor, time: u32) {
        grow(&mut self.known, actor);
        let t = &mut self.known[actor as usize];
        *t = (*t).max(time);
        self.memo = None;
    }
    /// Time of `actor` that is known to be over; 0 if none is.
    pub fn time_of(&self, actor: Actor) -> u32 {
        self.known.get(actor as usize).copied().unwrap_or(0)
    }
    /// Adds what another bundle holds.
    pub fn join(&mut self, other: &Bundle) {
        join(&mut self.known, &other.known);
        join(&mut self.fenced, &other.fenced);
        self.memo = None;
    }
}

fn grow(v: &mut Vec<u32>, actor: Actor) {
    if v.len() <= actor as usize {
        v.resize(actor as usize + 1, 0);
    }
}

fn join(into: &mut Vec<u32>, other: &[u32]) {
    if into.len() < other.len() {
        into.resize(other.len(), 0);
    }
    for (a, &b) in into.iter_mut().zip(other) {
        *a = (*a).max(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_travels_through_meetings() {
        let nothing = Rc::new(vec![]);
        let mut c: Vec<Clock> = (0..3).map(|a| Clock::new(a, &nothing)).collect();
        let written = c[0].now();
        assert!(c[0].knows(0, written) && !c[1].knows(0, written));
        Clock::meet(c[..2].iter_mut());
        assert!(c[1].knows(0, written) && !c[2].knows(0, written));
        Clock::meet(c[1..].iter_mut());
        assert!(c[2].knows(0, written), "order is transitive");
        assert!(!c[2].knows(0, c[0].now()), "what came after the meeting is not known");
        let mut bundle = Bundle::default();
        let written = c[0].now();
        assert!(!c[0].fenced(0, written));
        c[0].fence();
        c[0].release(&mut bundle);
        for _ in 0..2 {
            c[1].acquire(&mut bundle);
            assert!(c[1].knows(0, written) && c[1].fenced(0, written) && !c[1].fenced(1, c[1].now()));
        }
        assert!(!c[1].knows(0, c[0].now()) && !c[2].fenced(0, written));
        c[2].learn(7, 3);
        assert!(c[2].knows(7, 3) && !c[2].knows(7, 4) && !c[1].knows(7, 1));
    }
}
