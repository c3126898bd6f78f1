//! Vector clocks: what an actor knows to be over.
//!
//! An actor is a thread or an asynchronous queue. Its time counts synchronisations, not accesses. After a barrier or a
//! warp-wide operation all participants know the same, so they share one vector and keep only their own time apart; a
//! rendezvous of a warp then costs one copy instead of 32.

use std::rc::Rc;

/// Number of an actor within a block.
pub type Actor = u16;

/// Knowledge of one actor.
#[derive(Clone, Debug)]
pub struct Clock {
    actor: Actor,
    own: u32,
    known: Rc<Vec<u32>>,
}

impl Clock {
    /// Clock of an actor that has seen nothing.
    pub fn new(actor: Actor, nothing: &Rc<Vec<u32>>) -> Self {
        Clock { actor, own: 1, known: Rc::clone(nothing) }
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

    /// All of `clocks` meet: each then knows what any of them did before, and starts a new time.
    pub fn meet<'a>(clocks: impl IntoIterator<Item = &'a mut Clock>) {
        let clocks: Vec<&mut Clock> = clocks.into_iter().collect();
        let Some(first) = clocks.first() else { return };
        let mut all = (*first.known).clone();
        let mut seen = Rc::clone(&first.known);
        for c in &clocks[1..] {
            // Lanes of a warp nearly always share their vector already.
            if !Rc::ptr_eq(&seen, &c.known) {
                join(&mut all, &c.known);
                seen = Rc::clone(&c.known);
            }
        }
        for c in &clocks {
            grow(&mut all, c.actor);
            all[c.actor as usize] = c.own;
        }
        let all = Rc::new(all);
        for c in clocks {
            c.known = Rc::clone(&all);
            c.own += 1;
        }
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
        c[2].learn(7, 3);
        assert!(c[2].knows(7, 3) && !c[2].knows(7, 4) && !c[1].knows(7, 1));
    }
}
