//! The order in which llm.c's DataLoader shuffles the batches of its text: a permutation for each epoch, drawn from one
//! Mersenne Twister (Matsumoto and Nishimura 1998) with a fixed seed, so that a run here takes the batches that a run
//! there takes.

/// Words of the generator's state.
const WORDS: usize = 624;
/// The seed of the first process.
const SEED: u32 = 42;

/// MT19937.
#[derive(Debug)]
struct Twister {
    state: [u32; WORDS],
    next: usize,
}

impl Twister {
    fn new(seed: u32) -> Twister {
        let mut state = [seed; WORDS];
        for i in 1..WORDS {
            let before = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(i as u32);
        }
        Twister { state, next: WORDS }
    }

    fn draw(&mut self) -> u32 {
        if self.next == WORDS {
            for i in 0..WORDS {
                let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7fff_ffff);
                let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % WORDS] ^ (joined >> 1) ^ twist;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }
}

/// The permutations of one length, epoch by epoch.
#[derive(Debug)]
pub(crate) struct Shuffle {
    twister: Twister,
    /// How many epochs were drawn; `order` is the last one's.
    drawn: u64,
    order: Vec<u32>,
}

impl Shuffle {
    /// Of so many batches.
    pub fn new(batches: usize) -> Shuffle {
        Shuffle { twister: Twister::new(SEED), drawn: 0, order: vec![0; batches] }
    }

    /// Which batch is the `i`-th of an epoch, both counted from 0.
    pub fn batch(&mut self, epoch: u64, i: usize) -> usize {
        if self.drawn > epoch + 1 {
            (self.twister, self.drawn) = (Twister::new(SEED), 0);
        }
        while self.drawn <= epoch {
            self.order.iter_mut().enumerate().for_each(|(i, batch)| *batch = i as u32);
            for last in (1..self.order.len()).rev() {
                self.order.swap(last, self.twister.draw() as usize % (last + 1));
            }
            self.drawn += 1;
        }
        self.order[i] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that the C++ standard gives for its `mt19937` ([rand.predef]).
    #[test]
    fn the_twister_is_the_published_one() {
        let mut twister = Twister::new(5489);
        assert_eq!((0..10_000).map(|_| twister.draw()).last(), Some(4_123_659_995));
    }

    #[test]
    fn an_epoch_is_a_permutation_that_can_be_entered_anywhere() {
        for batches in [1, 2, 7, 1000] {
            let mut shuffle = Shuffle::new(batches);
            let mut epoch = |epoch| (0..batches).map(|i| shuffle.batch(epoch, i)).collect::<Vec<_>>();
            let all = [0, 1, 2].map(&mut epoch);
            assert_eq!([2, 0, 1].map(&mut epoch), [2, 0, 1].map(|n: usize| all[n].clone()));
            for order in all {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..batches));
                assert!(batches < 7 || !order.into_iter().eq(0..batches));
            }
        }
    }
}
