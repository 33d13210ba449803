//! The scheduler: what one run of the model computes when there are many requests. [`turn()`] is a pure function.
//!
//! * Every sequence that is decoding has one row in every turn.
//! * The other rows, up to a limit, are prefill: the oldest prompt first, and as many as fit. So at most one prompt is
//!   left unfinished, the last one that was admitted, and it advances in every turn (of costly prompts, below, one
//!   more). Prefill and decoding never wait for each other.
//! * A row of a sequence with costly interventions counts as several. The surplus, and the prompts of such sequences,
//!   get at most half of the rows for prompts, or one row if not even one fits. So they take longer, and no other
//!   request waits longer because of them: plain requests may overtake them, and they wait for each other.
//! * Requests are admitted in the order given (`Engine::next`), each once the KV cache has blocks for all positions it
//!   may need. So an admitted request is never preempted, and one that waits for memory is not starved by smaller ones.
//!
//! A cancelled sequence is not passed to the next turn; `Engine::cancel` gives its blocks back.

use limpid_core::decode::{BlockPool, BlockTable};

/// What a turn may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Rows of one run.
    pub rows: usize,
    /// Rows of one run whose logits are computed.
    pub outputs: usize,
    /// Rows of prompts in one run, at least 1, costly ones counted as several: a prompt longer than this comes in
    /// pieces, so that the others wait for a piece at most.
    pub prompt_rows: usize,
    /// Sequences that run side by side, at most `rows` and at most `outputs`.
    pub sequences: usize,
}

/// A sequence that runs: how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceProgress {
    /// Tokens whose keys and values are in the cache.
    pub held: usize,
    /// Tokens that are to be there after the next turns, more than `held`: the prompt, and what was chosen since.
    pub known: usize,
    /// The first position whose logits are wanted: the prompt's last, or an earlier one if it is scored.
    pub logits_from: usize,
    /// How many rows one of its rows is worth: 1, or more if steps change it.
    pub weight: usize,
}

/// A request that does not run yet.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRequest<'a> {
    /// The tokens of the prompt that are to be run, at least one.
    pub tokens: &'a [u32],
    /// The first position whose logits are wanted.
    pub logits_from: usize,
    /// All positions it may come to need, at most as many as the pool has room for ([`BlockPool::fits`]).
    pub positions: usize,
    /// Whether it shares blocks with sequences of the same beginning.
    pub shares: bool,
    /// How many rows one of its rows is worth.
    pub weight: usize,
    /// Whether it may run. One that begins with a prompt that is being run now had better wait for it.
    pub ready: bool,
}

/// The rows that a turn gives to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnRows {
    /// Its index among those that run; the admitted come after these.
    pub sequence: usize,
    /// How many of its tokens are run, from the first that is not held.
    pub rows: usize,
    /// How many of these, the last ones, give logits.
    pub outputs: usize,
}

/// What one run computes.
#[derive(Debug, Default)]
#[must_use = "the admitted hold blocks"]
pub struct Turn {
    /// The waiting requests that run from now on, by their places, and their blocks.
    pub admitted: Vec<(usize, BlockTable)>,
    /// The rows of every sequence that has some: first those with one, then prompts.
    pub rows: Vec<TurnRows>,
}

/// What is left of a turn.
struct Left {
    rows: usize,
    outputs: usize,
}

/// What is left for prompts of one kind: plain ones, or those with costly steps.
struct Share {
    work: usize,
    begun: bool,
}

impl Share {
    fn new(work: usize) -> Share {
        Share { work, begun: false }
    }

    /// How many rows worth `weight` there is room for: at least one for the first prompt, however much it is worth.
    fn rows(&self, weight: usize) -> usize {
        let least = usize::from(!self.begun && self.work > 0);
        (self.work / weight).max(least)
    }
}

impl Left {
    /// As many of a sequence's tokens as there is room for.
    fn give(&mut self, sequence: usize, progress: SequenceProgress, most: usize) -> TurnRows {
        let SequenceProgress { held, known, logits_from, .. } = progress;
        let silent = logits_from.saturating_sub(held);
        let rows = (known - held).min(most).min(self.rows).min(silent + self.outputs);
        let outputs = rows.saturating_sub(silent);
        self.rows -= rows;
        self.outputs -= outputs;
        TurnRows { sequence, rows, outputs }
    }

    /// The same of a prompt, from the share of its kind.
    fn prompt(&mut self, sequence: usize, progress: SequenceProgress, share: &mut Share) -> TurnRows {
        let given = self.give(sequence, progress, share.rows(progress.weight));
        share.begun |= given.rows > 0;
        share.work = share.work.saturating_sub(given.rows * progress.weight);
        if progress.weight > 1 && given.rows < progress.known - progress.held {
            share.work = 0; // what is left is too little for a row
        }
        given
    }
}

/// Decides the next run from those that run, in the order they were admitted, and those that wait, in the order they
/// came. It takes the blocks of those that it admits from the pool, and depends on nothing but its arguments.
///
/// The caller runs the rows, then tells the pool what is in the cache ([`BlockPool::register`]), and releases the
/// blocks of sequences that ended.
pub fn turn<'a>(
    pool: &mut BlockPool,
    running: &[SequenceProgress],
    waiting: impl IntoIterator<Item = WaitingRequest<'a>>,
    limits: &TurnLimits,
) -> Turn {
    let TurnLimits { rows, outputs, prompt_rows, sequences } = *limits;
    assert!(prompt_rows > 0 && running.len() <= sequences && sequences <= rows.min(outputs), "{limits:?}");
    let (mut left, mut turn) = (Left { rows, outputs }, Turn::default());
    let waiting: Vec<WaitingRequest> = waiting.into_iter().collect();
    let all = || running.iter().copied().enumerate();
    let one = |progress: &SequenceProgress| progress.known == progress.held + 1;
    turn.rows.extend(all().filter(|(_, p)| one(p)).map(|(sequence, p)| left.give(sequence, p, 1)));
    // what a costly row is worth more than a plain one, and costly prompts, have half of what prompts have
    let half = prompt_rows / 2;
    let more: usize = running.iter().filter(|p| one(p)).map(|p| p.weight - 1).sum();
    let costly = running.iter().any(|p| p.weight > 1) || waiting.iter().any(|request| request.weight > 1);
    let mut shares = [
        Share::new(if costly { prompt_rows - half } else { prompt_rows }),
        Share::new(half.saturating_sub(more).max(1)),
    ];
    for (sequence, p) in all().filter(|(_, p)| !one(p)) {
        turn.rows.push(left.prompt(sequence, p, &mut shares[usize::from(p.weight > 1)]));
    }
    turn.rows.retain(|given| given.rows > 0); // several whose contexts were full may have to run half of them again
    for (at, request) in waiting.into_iter().enumerate() {
        let sequence = running.len() + turn.admitted.len();
        if !request.ready || sequence == sequences || left.rows == 0 || left.outputs == 0 {
            break;
        }
        let WaitingRequest { tokens, logits_from, positions, shares: reuses, weight, .. } = request;
        let share = &mut shares[usize::from(weight > 1)];
        if share.rows(weight) == 0 {
            if weight > 1 { continue } else { break }
        }
        // rows that give logits are run, and so is the last one in any case
        let silent = logits_from.min(tokens.len() - 1);
        let Some(table) = pool.reserve(reuses.then_some(&tokens[..silent]), positions) else { break };
        let progress = SequenceProgress { held: table.found(), known: tokens.len(), logits_from, weight };
        turn.admitted.push((at, table));
        turn.rows.push(left.prompt(sequence, progress, share));
    }
    turn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::random::{below, mix};
    use crate::ops::BLOCK;
    use std::collections::VecDeque;

    const LIMITS: TurnLimits = TurnLimits { rows: 40, outputs: 12, prompt_rows: 32, sequences: 8 };

    /// Whether it is given to `sequence`: (rows, outputs).
    fn given(turn: &Turn, sequence: usize) -> Option<(usize, usize)> {
        turn.rows.iter().find(|r| r.sequence == sequence).map(|r| (r.rows, r.outputs))
    }

    #[test]
    fn writers_have_a_row_each_and_prompts_share_the_rest() {
        let mut pool = BlockPool::new(64);
        let writer = |held| SequenceProgress { held, known: held + 1, logits_from: 0, weight: 1 };
        let running = [writer(9), SequenceProgress { held: 16, known: 26, logits_from: 25, weight: 1 }, writer(70)];
        let prompt: Vec<u32> = (0..100).collect();
        let asks = |length: usize| WaitingRequest {
            tokens: &prompt[..length],
            logits_from: length - 1,
            positions: length + 5,
            shares: true,
            weight: 1,
            ready: true,
        };
        let turn = turn(&mut pool, &running, [asks(12), asks(50), asks(2)], &LIMITS);
        let rows: Vec<_> = turn.rows.iter().map(|r| (r.sequence, r.rows, r.outputs)).collect();
        // 10 of the prompt that runs, 12 of the first that waits, and 10 are left for the second
        assert_eq!(rows, [(0, 1, 1), (2, 1, 1), (1, 10, 1), (3, 12, 1), (4, 10, 0)]);
        assert_eq!(turn.admitted.len(), 2, "the third waits until the second is through");
        turn.admitted.into_iter().for_each(|(_, table)| pool.release(table));
    }

    /// Whatever those with costly steps take, prompts without have half of the rows in every turn, and each of the
    /// others advances.
    #[test]
    fn costly_rows_have_half_of_the_prompts() {
        let prompt: Vec<u32> = (0..100).collect();
        let half = LIMITS.prompt_rows - LIMITS.prompt_rows / 2;
        for weight in [2, 5, 16, 17, 33, 1000] {
            let mut pool = BlockPool::new(64);
            let asks = |weight| WaitingRequest {
                tokens: &prompt,
                logits_from: 99,
                positions: 110,
                shares: false,
                weight,
                ready: true,
            };
            let sequence = |held, known| SequenceProgress { held, known, logits_from: known - 1, weight };
            for running in [vec![], vec![sequence(7, 8)], vec![sequence(9, 50)], vec![sequence(7, 8), sequence(9, 50)]]
            {
                let turn = turn(&mut pool, &running, [asks(weight), asks(weight), asks(1), asks(weight)], &LIMITS);
                let plain = turn.admitted.iter().position(|(at, _)| *at == 2).unwrap();
                assert_eq!(given(&turn, running.len() + plain), Some((half, 0)), "{running:?} of {weight}");
                let costly = turn.rows.iter().filter(|rows| rows.sequence != running.len() + plain);
                assert!(running.iter().enumerate().all(|(n, _)| given(&turn, n).is_some()), "each advances");
                let rows: Vec<usize> = costly.map(|rows| rows.rows).collect();
                let price = rows.iter().sum::<usize>() * (weight - 1);
                assert!(price <= (LIMITS.prompt_rows / 2).max(weight * rows.len()), "{rows:?} of {weight}");
                turn.admitted.into_iter().for_each(|(_, table)| pool.release(table));
            }
        }
    }

    #[test]
    fn nobody_overtakes() {
        let prompt: Vec<u32> = (0..100).collect();
        let asks = |positions, ready| WaitingRequest {
            tokens: &prompt[..4],
            logits_from: 3,
            positions,
            shares: true,
            weight: 1,
            ready,
        };
        let admitted = |blocks: usize, running: usize, waiting: &[WaitingRequest]| {
            let mut pool = BlockPool::new(blocks);
            let running = vec![SequenceProgress { held: 5, known: 6, logits_from: 0, weight: 1 }; running];
            let turn = turn(&mut pool, &running, waiting.iter().copied(), &LIMITS);
            let count = turn.admitted.len();
            assert_eq!(turn.rows.len(), running.len() + count);
            turn.admitted.into_iter().for_each(|(_, table)| pool.release(table));
            count
        };
        let (small, large) = (asks(10, true), asks(3 * BLOCK, true));
        assert_eq!(admitted(4, 0, &[small, large, small]), 2);
        assert_eq!(admitted(3, 0, &[small, large, small]), 1, "the large one waits for memory");
        assert_eq!(admitted(9, 0, &[small, asks(10, false), small]), 1, "the second waits for the first");
        assert_eq!(admitted(9, 7, &[small, small]), 1, "eight run side by side");
        assert_eq!(admitted(9, 8, &[small]), 0);
    }

    /// A scored prompt is cut where outputs end, and what is found in the cache is not what its logits need.
    #[test]
    fn a_scored_prompt_gives_all_its_logits() {
        let mut pool = BlockPool::new(8);
        let tokens: Vec<u32> = (0..3 * BLOCK as u32).collect();
        let mut table = pool.reserve(Some(&tokens), tokens.len()).unwrap();
        pool.register(&mut table, &tokens);
        pool.release(table);
        for (logits_from, found) in [(0, 0), (BLOCK - 1, 0), (BLOCK, 1), (3 * BLOCK - 1, 2)] {
            let ask = WaitingRequest {
                tokens: &tokens,
                logits_from,
                positions: tokens.len(),
                shares: true,
                weight: 1,
                ready: true,
            };
            let first = turn(&mut pool, &[], [ask], &LIMITS);
            let (_, table) = first.admitted.into_iter().next().unwrap();
            assert_eq!(table.found(), found * BLOCK);
            let (mut held, mut outputs) = (table.found() + first.rows[0].rows, first.rows[0].outputs);
            while held < tokens.len() {
                let progress = SequenceProgress { held, known: tokens.len(), logits_from, weight: 1 };
                let next = turn(&mut pool, &[progress], [], &LIMITS);
                let (rows, more) = given(&next, 0).unwrap();
                assert!(rows > 0 && rows <= LIMITS.prompt_rows && more <= LIMITS.outputs);
                (held, outputs) = (held + rows, outputs + more);
            }
            assert_eq!(outputs, tokens.len() - logits_from);
            pool.release(table);
        }
    }

    /// A request of the simulation, waiting or running.
    struct Asker {
        tokens: Vec<u32>,
        /// One for each prefix of the tokens: stands for keys and values, which depend on all tokens before.
        states: Vec<u64>,
        prompt: usize,
        max_tokens: usize,
        logits_from: usize,
        shares: bool,
        weight: usize,
        held: usize,
        outputs: usize,
        table: Option<BlockTable>,
    }

    impl Asker {
        fn push(&mut self, token: u32) {
            let before = self.states.last().copied().unwrap_or(1);
            self.states.push(mix(before ^ u64::from(token)));
            self.tokens.push(token);
        }
        fn positions(&self) -> usize {
            self.prompt + self.max_tokens.saturating_sub(1)
        }
        fn waits(&self) -> WaitingRequest<'_> {
            let Asker { tokens, logits_from, shares, weight, .. } = self;
            let positions = self.positions();
            WaitingRequest {
                tokens,
                logits_from: *logits_from,
                positions,
                shares: *shares,
                weight: *weight,
                ready: true,
            }
        }
        fn progress(&self) -> SequenceProgress {
            SequenceProgress {
                held: self.held,
                known: self.tokens.len(),
                logits_from: self.logits_from,
                weight: self.weight,
            }
        }
        /// Compares the cache with what this sequence alone would have put there.
        fn check(&self, cache: &[u64]) {
            let blocks = self.table.as_ref().unwrap().blocks();
            for (position, state) in self.states.iter().enumerate().take(self.held) {
                let at = blocks[position / BLOCK] as usize * BLOCK + position % BLOCK;
                assert_eq!(cache[at], *state, "position {position} of a prompt of {}", self.prompt);
            }
        }
    }

    /// A million turns with bursts of arrivals, long and short prompts, common beginnings, scored prompts, and
    /// cancellations at any time, in a cache that is too small for all.
    #[test]
    fn a_million_turns_keep_every_promise() {
        let mut pool = BlockPool::new(14);
        let mut cache = vec![0; pool.capacity() * BLOCK];
        let (mut waiting, mut running) = (VecDeque::<Asker>::new(), Vec::<Asker>::new());
        let (mut draws, mut came) = (0, 0);
        let mut draw = |n: u64| {
            draws += 1;
            below(11, 3, draws, n) as usize
        };
        let (mut found, mut short_of_memory, mut ended, mut cancelled) = (0, 0, 0, 0);
        for now in 0..1_000_000 {
            // bursts: for a thousand turns many come, then few
            let often = if now / 1000 % 2 == 0 { 2 } else { 40 };
            while waiting.len() < 12 && draw(often) == 0 {
                came += 1;
                let prompt = if draw(4) == 0 { 1 + draw(200) } else { 1 + draw(40) };
                let (family, apart) = (draw(3) as u32, draw(400));
                let token = |position: usize| match position as u32 {
                    own if position >= apart => 10_000 + came % 100_000 + own,
                    first if position < BLOCK => 1000 * family + first,
                    same => same, // the same tokens, after others
                };
                let (max_tokens, scored) = (1 + draw(40), draw(8) == 0);
                let mut asker = Asker {
                    tokens: vec![],
                    states: vec![],
                    prompt,
                    max_tokens,
                    logits_from: if scored { draw(prompt as u64) } else { prompt - 1 },
                    shares: draw(10) > 0,
                    weight: if draw(6) == 0 { 1 + draw(50) } else { 1 },
                    held: 0,
                    outputs: 0,
                    table: None,
                };
                (0..prompt).for_each(|position| asker.push(token(position)));
                waiting.push_back(asker);
            }
            if draw(50) == 0 && !waiting.is_empty() {
                waiting.remove(draw(waiting.len() as u64));
                cancelled += 1;
            }
            if draw(50) == 0 && !running.is_empty() {
                let gone = running.remove(draw(running.len() as u64));
                pool.release(gone.table.unwrap());
                cancelled += 1;
            }

            let progress: Vec<SequenceProgress> = running.iter().map(Asker::progress).collect();
            let decided = turn(&mut pool, &progress, waiting.iter().map(Asker::waits), &LIMITS);
            for (before, (at, table)) in decided.admitted.into_iter().enumerate() {
                let mut asker = waiting.remove(at - before).unwrap();
                asker.held = table.found();
                found += table.found() / BLOCK;
                assert!(table.positions() >= asker.positions() && asker.held <= asker.logits_from);
                asker.table = Some(table);
                asker.check(&cache);
                running.push(asker);
            }
            assert!(!running.is_empty() || waiting.is_empty(), "nobody runs, and somebody waits");
            let unused = LIMITS.prompt_rows.saturating_sub(decided.rows.iter().map(|r| r.rows).sum());
            short_of_memory += usize::from(unused > 0 && !waiting.is_empty() && running.len() < LIMITS.sequences);

            // everybody who runs advances, once; but a prompt waits for another's logits
            let outputs: usize = decided.rows.iter().map(|r| r.outputs).sum();
            assert!(decided.rows.len() == running.len() || outputs == LIMITS.outputs);
            let mut advanced = vec![false; running.len()];
            let (mut rows, mut outputs, mut of_prompts, mut work, mut least) = (0, 0, 0, 0, 0);
            for given in &decided.rows {
                let asker = &mut running[given.sequence];
                assert!(given.rows > 0 && !std::mem::replace(&mut advanced[given.sequence], true));
                let missing = asker.tokens.len() - asker.held;
                assert!(given.rows <= missing && given.outputs <= given.rows);
                (rows, outputs) = (rows + given.rows, outputs + given.outputs);
                of_prompts += if missing > 1 { given.rows } else { 0 };
                work += given.rows * asker.weight;
                least += asker.weight - 1;
                let blocks = asker.table.as_ref().unwrap().blocks();
                for position in asker.held..asker.held + given.rows {
                    cache[blocks[position / BLOCK] as usize * BLOCK + position % BLOCK] = asker.states[position];
                }
                asker.held += given.rows;
                asker.outputs += given.outputs;
            }
            assert!(rows <= LIMITS.rows && outputs <= LIMITS.outputs && of_prompts <= LIMITS.prompt_rows);
            assert!(work <= LIMITS.rows + least, "{work} rows' worth, {least} of them the price of a row each");
            for costly in [false, true] {
                let of_kind = running.iter().filter(|a| (a.weight > 1) == costly);
                let unfinished = of_kind.filter(|a| a.held < a.tokens.len()).count();
                assert!(unfinished <= 1, "{unfinished} prompts are unfinished");
            }

            // blocks that were written belong to one sequence alone
            if now % 16 == 0 {
                let mut holders = vec![0; pool.capacity()];
                let tables = || running.iter().map(|a| (a, a.table.as_ref().unwrap().blocks()));
                tables().flat_map(|(_, blocks)| blocks).for_each(|block| holders[*block as usize] += 1);
                for (asker, blocks) in tables() {
                    let own = &blocks[(asker.held - 1) / BLOCK..];
                    assert!(own.iter().all(|block| holders[*block as usize] == 1), "a block that is written is shared");
                }
                assert_eq!(pool.held(), holders.iter().filter(|held| **held > 0).count());
            }

            let mut at = 0;
            while at < running.len() {
                let asker = &mut running[at];
                let mut table = asker.table.take().unwrap();
                pool.register(&mut table, &asker.tokens[..asker.held]);
                asker.table = Some(table);
                if asker.held < asker.tokens.len() {
                    at += 1;
                } else if asker.tokens.len() < asker.positions() && draw(100) > 0 {
                    asker.push(draw(50_000) as u32);
                    at += 1;
                } else {
                    asker.check(&cache);
                    assert_eq!(asker.outputs, asker.tokens.len() - asker.logits_from);
                    pool.release(running.remove(at).table.unwrap());
                    ended += 1;
                }
            }
        }
        running.into_iter().for_each(|asker| pool.release(asker.table.unwrap()));
        assert_eq!(pool.held(), 0, "blocks are lost");
        // what is promised was put to the test
        let seen = [found, short_of_memory, ended, cancelled];
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }
}
