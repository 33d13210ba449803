//! `builtin:stories`, a corpus that needs no download: small English stories from a probabilistic grammar, with the
//! exact log-probability of every story. People, pronouns, objects, places and outcomes must agree across sentences,
//! and the mean of `-log_probability` is the entropy no model can beat.
//!
//! [`GRAMMAR`] is text, compiled once. One `Walk` steps through it and leaves the choices to a driver: a seed
//! ([`Stories`]), a given text ([`log_probability`]), or, in the tests, all choices in turn. The recogniser sums over
//! all derivations; the tests find exactly one for every story tried, so the generator's own sum is the probability of the
//! text.

use std::collections::HashMap;
use std::sync::LazyLock;

/// One story: its text (one line, ends with `"\n"`) and the natural log of the exact probability that the generator
/// writes this text.
#[derive(Clone, PartialEq, Debug)]
pub struct Story {
    /// The line, with its `"\n"`.
    pub text: String,
    /// ln p(text), at most 0.
    pub log_probability: f64,
}

/// An endless stream of stories decided by a seed: story `n` is a pure function of (seed, n).
#[derive(Clone, Debug)]
pub struct Stories {
    seed: u64,
    next: u64,
}

impl Stories {
    /// The stream of `seed`, at story 0.
    pub fn new(seed: u64) -> Stories {
        Stories { seed, next: 0 }
    }

    /// Story `n`; does not move the stream.
    pub fn story(&self, n: u64) -> Story {
        let mut text = String::with_capacity(512);
        let log_probability = self.append(n, &mut text);
        Story { text, log_probability }
    }

    /// Story `n` written behind `text`; its log-probability.
    fn append(&self, n: u64, text: &mut String) -> f64 {
        let grammar = &*COMPILED;
        let mut draws = SplitMix::at(self.seed, n);
        let mut walk = Walk::start(grammar.start);
        let mut log_probability = 0.0;
        let start = text.len();
        loop {
            match walk.step(grammar) {
                Step::Write(piece) => piece.append(text, text.len() == start),
                Step::Choose(choice) => {
                    let total = choice.total(grammar, &walk);
                    let mut left = draws.below(total);
                    let mut options = choice.options(grammar, &walk);
                    let taken = options.find(|option| match left.checked_sub(option.weight) {
                        Some(less) => {
                            left = less;
                            false
                        }
                        None => true,
                    });
                    drop(options);
                    let Some(option) = taken else { break }; // cannot be: `left` is below the sum of the weights
                    log_probability += grammar.log(option.weight) - grammar.log(total);
                    walk.take(choice, option.entry);
                }
                Step::End => break,
            }
        }
        text.push('\n');
        log_probability
    }
}

impl Iterator for Stories {
    type Item = Story;

    fn next(&mut self) -> Option<Story> {
        let story = self.story(self.next);
        self.next = self.next.wrapping_add(1);
        Some(story)
    }
}

/// Stories 0, 1, 2 ... of `seed` until there are at least `bytes` bytes, and the sum of their log-probabilities.
pub fn corpus(seed: u64, bytes: usize) -> (String, f64) {
    let stories = Stories::new(seed);
    let mut text = String::with_capacity(bytes.saturating_add(1024).min(1 << 28));
    let (mut sum, mut n) = (0.0, 0);
    while text.len() < bytes {
        sum += stories.append(n, &mut text);
        n += 1;
    }
    (text, sum)
}

/// The natural log of the exact probability that the generator writes this one line (with or without its `"\n"`);
/// `None` where the grammar cannot write it. Scores a model's own stories.
pub fn log_probability(text: &str) -> Option<f64> {
    COMPILED.recognise(text.strip_suffix('\n').unwrap_or(text)).map(|(log_probability, _)| log_probability)
}

/// The grammar, for reading. `rule: 3 an option | another` draws the first with probability 3/4; `_` writes nothing.
/// A hole `<rule>` draws from that rule, `<S:rule>` also keeps the option as S (one capital), `<-S:rule>` keeps
/// without writing, `<S>` writes what was kept, `<^...>` begins with a capital letter. `<rule@S>` draws from the rule
/// named `rule.tag`, where the tags of S are its words joined by `-` and those in brackets, or else from plain
/// `rule`: so verbs, pronouns, places and endings agree. `<rule!S>` leaves out the option kept as S. `=rule` takes
/// over that rule's options.
pub const GRAMMAR: &str = r##"
story: 14 <lost> | 12 <gift> | 12 <rescue> | 10 <quarrel> | 10 <baking> | 9 <fable> | 8 <contest> | 8 <lesson>
    | 7 <garden>
    | 7 <truth> | 6 <trip> | 5 <night>

# People. A is the hero, B the other child, K a grown-up of the family; T is the hero's trait.
boy [m]: 9 Tom | 8 Ben | 7 Max | 6 Sam | 6 Jack | 5 Leo | 5 Tim | 4 Finn | 4 Noah | 3 Oscar | 3 Henry | 2 Hugo
    | 2 Peter
    | 1 Arthur
girl [f]: 9 Anna | 8 Lily | 7 Mia | 6 Lucy | 6 Emma | 5 Sue | 5 Kate | 4 Ella | 4 Jane | 3 Nora | 3 Clara | 2 Ivy
    | 2 Molly
    | 1 Matilda
name: =boy | =girl
named: =boy | =girl
named.m: =boy
named.f: =girl
kid: boy [m] | girl [f]
kid.m: boy
kid.f: girl
kin: 5 mother [f] | 5 father [m] | 4 grandmother [f] | 3 grandfather [m] | 2 aunt [f] | 2 uncle [m]
peer: 6 friend | 4 brother [m] | 4 sister [f] | 2 cousin | 1 neighbour
mate: <his@A> <R:peer> <B:named@R!A>
trait: 6 little | 4 small | 4 young | 4 kind | 3 clever | 3 brave | 2 quiet | 2 gentle | 2 curious | 2 cheerful
    | 1 shy | 1 patient
best: luckiest | happiest
best.kind: kindest
best.clever: cleverest
best.brave: bravest
best.quiet: quietest
best.gentle: gentlest

# Agreement: people by m, f, n; things by p (plural).
he.m: he
he.f: she
he.n: it
him.m: him
him.f: her
him.n: it
his.m: his
his.f: her
his.n: its
it: it
it.p: them
they: it
they.p: they
was: was
was.p: were
is: is
is.p: are
one: one
one.p: ones

# Words.
colour: 6 red | 6 blue | 5 green | 4 yellow | 3 white | 3 black | 3 brown | 2 purple | 2 pink | 1 silver | 1 golden
adj_c: 2 =colour | 12 little | 10 big | 7 new | 6 tiny | 6 shiny | 4 soft | 3 lovely | 2 heavy | 1 strange
adj_v: 5 old | 3 orange | 1 odd | 1 ugly
adj: 1 =adj_c | 2 =adj_v
single: 9 ball | 7 kite | 6 doll | 6 hat | 5 book | 5 key | 4 teddy bear | 4 scarf | 3 umbrella | 3 whistle | 3 drum
    | 2 ring | 2 lantern | 2 basket | 2 bell | 1 paintbrush | 1 compass
pair [p]: 5 boots | 4 mittens | 3 glasses | 3 gloves | 2 marbles | 1 socks
an_obj: 9 a <D:adj_c> <O:single> | 2 an <D:adj_v> <O:single> | 3 <D:adj> <O:pair>
the_o: 3 the <O> | 2 the <D> <O> | 3 <his@A> <O> | 1 <his@A> <D> <O>
very: 5 _ | 4 very | 3 so | 1 quite
sad: 8 sad | 3 unhappy | 3 upset | 2 worried | 1 miserable
glad: 8 happy | 4 glad | 3 proud | 2 pleased | 1 delighted
scared: 4 scared | 3 afraid | 1 frightened
cried: 4 cried | 2 shouted | 1 wailed
said: 8 said | 2 whispered | 1 answered
when: 5 One day | 5 One <W:weather> <time> | 2 Last <weekday> | 1 One <time> in <season>
weather: 5 sunny | 4 windy | 4 cold | 3 warm | 2 rainy | 1 foggy
time: 5 morning | 4 afternoon | 2 evening
weekday: Monday | Tuesday | Wednesday | Thursday | 2 Friday | 3 Saturday | 3 Sunday
season: 3 spring | 3 summer | 2 autumn | 2 winter
home: 5 in a village | 4 near the sea | 4 on a farm | 3 in a big city | 3 by the river | 2 at the edge of the forest
    | 1 on top of a hill | 1 in a house with a <colour> door
intro: 5 Once there was a <T:trait> <G:kid> called <A:named@G>. | 4 <A:name> was a <T:trait> <kid@A> who lived <home>.
    | 2 A <T:trait> <G:kid> called <A:named@G> lived <home>.
    | 2 Once upon a time, <A:name>, a <T:trait> <kid@A>, lived <home> with <his@A> <H:kin>.
place: 6 park | 5 garden | 4 forest | 4 beach | 3 market | 3 school | 2 library | 2 barn
place.kite: 4 hill | 3 beach | 3 field | 2 park
place.ball: 5 park | 3 field | 3 garden | 2 beach | 2 school
place.book: 5 library | 4 school | 2 park | 1 garden
place.umbrella: 4 market | 3 park | 2 school
place.mittens: 3 forest | 3 park | 2 hill
spot.park: 4 under a bench | 3 behind a tree | 2 beside the pond | 2 near the swings | 1 under the slide
spot.garden: 4 behind the roses | 3 under the apple tree | 2 in the shed | 2 beside the fence
spot.forest: 4 behind a log | 3 under the leaves | 2 beside the stream | 2 in a hollow tree
spot.beach: 4 under a towel | 3 behind the rocks | 2 in the sand | 1 inside an old boat
spot.market: 4 under the fruit cart | 3 beside the fountain | 2 behind the flower stall | 1 near the fish
spot.school: 4 under a desk | 3 in the hall | 2 behind the door | 2 near the playground
spot.library: 4 under a chair | 3 between two books | 2 on a high shelf
spot.barn: 4 in the hay | 3 behind the tractor | 2 under the ladder | 1 beside the sheep
spot.hill: 4 behind a stone | 3 in the long grass | 2 near the windmill
spot.field: 4 in the corn | 3 beside the gate | 2 behind the scarecrow
trifle: 4 a snail | 3 a feather | 3 a button | 2 some string | 2 an acorn | 1 a beetle | 1 an empty bottle

# A thing is lost, looked for, and found or not.
lost: <intro> <l_have> <l_go> <l_gone> <l_sad> <l_look> <l_rest>
l_have: 5 <^he@A> had <an_obj>. | 3 For <his@A> birthday, <his@A> <K:kin> gave <him@A> <an_obj>.
    | 2 <^he@A> loved <his@A> <D:adj> <O:thing> more than anything else.
thing: 5 =single | 3 =pair
l_go: 4 <when>, <he@A> took <it@O> to the <P:place@O>.
    | 3 <when>, <A> went to the <P:place@O> and played there with <it@O>.
    | 1 <when>, <he@A> carried <it@O> all the way to the <P:place@O>.
l_gone: 4 But on the way home, <the_o> <was@O> gone. | 3 But when it was time to leave, <he@A> could not find <it@O>.
    | 2 Suddenly <the_o> <was@O> not there any more.
l_sad: 4 <A> was <very> <sad>. | 3 <A> began to cry. | 3 "Oh no!" <cried> <A>. "<^where_is@O> my <O>?"
    | 1 <A> almost cried, because <he@A> loved <it@O> so much.
where_is: where is
where_is.p: where are
l_look: 4 <^he@A> ran back to the <P> and looked <X:spot@P>, but <they@O> <was@O> not there.
    | 3 First <he@A> looked <X:spot@P>, but <he@A> only found <trifle>.
    | 2 <A> went back to the <P>. <^he@A> searched <X:spot@P>. Nothing!
l_rest: 4 <l_alone> <l_glad> | 3 <l_help> <l_found> <l_thank> | 2 <l_help> <l_never> | 1 <l_thief> <l_glad>
l_alone: 4 Then <he@A> looked <Y:spot@P!X>, and there <they@O> <was@O>!
    | 2 At last <he@A> saw something <D> <Y:spot@P!X>. It was <the_o>!
l_help: 4 Then <mate> came to help. | 2 <A> asked <mate> for help.
l_found: 4 <B> looked <Y:spot@P!X> and found <the_o>. | 2 "Look <Y:spot@P!X>!" said <B>, and there <they@O> <was@O>.
l_thank: 3 "Thank you, <B>!" said <A>, and <he@A> gave <him@B> a hug.
    | 2 <A> was so <glad> that <he@A> let <B> play with <it@O> all day.
    | 1 <B> smiled, and the two of them walked home with <the_o>.
l_never: They looked <Y:spot@P!X> too, but <they@O> <was@O> lost. <l_never_end>
l_never_end: 3 So <B> gave <A> <his@B> own <O>, and <A> smiled again.
    | 2 <A> went home without <the_o>, but <B> told <him@A> funny stories all the way.
    | 1 "I will make you a new <one@O>," <said> <B>.
l_thief: A <N:thief> was sitting <Y:spot@P!X> with <the_o>. <^he@A> gave the <N> <some_food@N>, and it let go.
thief: 4 dog | 3 crow | 2 monkey | 1 goat
some_food: a cake
some_food.dog: 3 a bone | 2 a piece of sausage
some_food.crow: 2 some bread | 1 a worm
some_food.monkey: 3 a banana | 1 some nuts
some_food.goat: 2 a carrot | 1 some grass
l_glad: 3 <A> was <very> <glad>. | 3 <^he@A> hugged <the_o> and ran home.
    | 2 "I will never lose you again," <he@A> <said>.
    | 2 From that day on, <A> never took <the_o> to the <P> again.

# A present for somebody: wished for, made or bought, and liked or not.
gift: <intro> <g_day> <g_idea> <g_make> <g_give> <g_end>
g_day: 4 It was the birthday of <his@A> <K:kin>. | 3 <^his@A> <K:kin> was ill and had to stay in bed.
    | 2 <^his@A> <K:kin> was coming home after a long journey.
g_idea: 3 <A> wanted to give <him@K> <a_gift>, because <he@K> <g_why@O>.
    | 2 "I will find <a_gift> for <him@K>," thought <A>, because <he@K> <g_why@O>.
a_gift: 5 a <D:colour> <O:present> | 3 a <D:fine> <O:present>
fine: 3 warm | 3 beautiful | 2 big | 1 fine
present: 5 scarf | 4 cake | 4 picture | 3 cup | 3 blanket | 2 lamp | 2 candle | 1 bookshelf
g_why.scarf: 3 was often cold | 2 loved to walk in the snow
g_why.cake: 3 loved sweet things | 2 was always hungry
g_why.picture: 3 loved art | 2 had nothing on the wall
g_why.cup: 3 drank a lot of tea | 2 had lost the old one
g_why.blanket: 3 slept badly | 2 was often cold at night
g_why.lamp: 3 sat in a dark room | 1 had broken the old one
g_why.candle: 3 did not like the dark | 2 loved to read at night
g_why.bookshelf: 3 had too many books | 1 kept all the books on the floor
g_make: 4 <^he@A> had only <coins>, so <he@A> <g_made@O> it <self@A>.
    | 3 <^he@A> went to the market and bought one for <coins>.
    | 2 With the help of <mate>, <he@A> <g_made@O> it in one <time>.
coins: 3 two coins | 2 three coins | 1 five coins | 1 one coin
self.m: himself
self.f: herself
g_made: made
g_made.scarf: knitted
g_made.cake: baked
g_made.picture: 3 painted | 2 drew
g_made.blanket: sewed
g_made.bookshelf: built
g_give: 4 In the evening, <A> gave the <O> to <his@A> <K>.
    | 3 <A> hid the <O> behind <his@A> back. "Guess what I have!" <he@A> said.
    | 2 <A> put the <D> <O> on the table and waited.
g_end: 4 "What a <fine_word> <O>!" said <his@A> <K>. <g_after> | 3 <^his@A> <K> laughed and kissed <him@A>. <g_after>
    | 2 But <his@A> <K> already had a <O>. <g_two>
fine_word: 4 lovely | 3 wonderful | 2 splendid
g_after: 3 <A> had never been so <glad>. | 2 Everyone said that <A> was the <best@T> <kid@A> in the family.
    | 2 <g_use@O>
g_use: The <O> was never far away after that.
g_use.scarf: <^he@K> wore the <O> every day.
g_use.cake: They ate the <O> together.
g_use.picture: <^he@K> hung the <D> <O> over <his@K> bed.
g_use.cup: <^he@K> drank from the <O> every morning.
g_use.blanket: That night, <he@K> slept under the <D> <O>.
g_use.candle: They lit the <O> at once.
g_two: 3 "Now I have two," <he@K> said, "and I like yours best."
    | 1 <A> was <sad>, but <his@A> <K> said that two were better than one.

# An animal in trouble: what is wrong (I) decides the care it needs.
animal [n]: 5 bird | 4 kitten | 4 puppy | 3 rabbit | 3 duck | 2 hedgehog | 2 squirrel | 1 lamb
state: 5 small | 3 grey | 2 brown | 2 white | 1 spotted
rescue: <intro> <r_find> <I:injury> <care@I> <r_ask>
r_find: 4 <when>, <A> found a <E:state> <N:animal> <r_spot>.
    | 3 <when>, <he@A> heard a soft sound <r_spot>. It was a <E:state> <N:animal>.
    | 2 On the way to <errand>, <he@A> saw a <E:state> <N:animal> <r_spot>.
r_spot: 3 under a bush | 3 beside the road | 2 in the snow | 2 in a muddy ditch | 1 in an old box | 1 behind the house
errand: 4 school | 2 the shop | 1 church | 1 the bus
injury: 4 It had a broken <limb@N> and could not <move@N>. [broken] | 3 It was wet and shook with cold. [cold]
    | 3 It was thin and <very> hungry. [hungry] | 2 It had lost its mother and <called@N> for her. [alone]
limb: leg
limb.bird: wing
limb.duck: wing
move: run
move.bird: fly
move.duck: swim
move.rabbit: hop
move.squirrel: climb
moved: ran
moved.bird: flew
moved.duck: swam
moved.rabbit: hopped
moved.squirrel: climbed
called: called
called.bird: 2 sang | 1 called
called.kitten: 2 meowed | 1 cried
called.puppy: 2 barked | 1 howled
called.duck: quacked
called.lamb: bleated
food: 2 some milk | 1 some bread
food.bird: 2 some seeds | 1 a worm
food.kitten: 2 some milk | 1 a little fish
food.puppy: 2 a bone | 1 some meat
food.rabbit: 2 a carrot | 1 some grass
food.squirrel: 2 some nuts | 1 an acorn
care.broken: 3 <A> tied a clean cloth round its <limb@N> and carried it home.
    | 1 <^he@A> ran to the animal doctor, who looked after the <limb@N>.
care.cold: 3 <A> put the <N> inside <his@A> <C:colour> coat and took it home.
    | 2 <^he@A> dried it with a towel and put it near the fire.
care.hungry: 3 <A> gave it <food@N>, and it ate everything. | 2 "Eat this," said <A>, and gave the <N> <food@N>.
care.alone: 3 <A> sat with the <N> all day. | 2 "Do not be <scared>," <A> <said>. "I will stay with you."
r_ask: 4 "Can I keep it?" <he@A> asked. <^his@A> <K:kin> <r_yes>, so <A> called the <N> <M:pet>. <r_kept>
    | 3 <days>, <healed@I>. <r_free>
r_yes: 4 said yes | 2 nodded | 1 smiled
pet: 4 Lucky | 3 Button | 3 Pepper | 2 Snowy | 2 Biscuit | 1 Captain
r_kept: 3 From then on, <M> slept at the end of the bed every night.
    | 2 <M> grew big and strong, and <A> and <M> were never apart.
    | 2 Soon <M> could <move@N> again, and followed <A> everywhere.
days: 3 After a week | 2 After three days | 1 When spring came
healed.broken: its <limb@N> was well again
healed.cold: it was warm and strong
healed.hungry: it was round and strong
healed.alone: its mother came to look for it
r_free: 3 "Goodbye, little <N>!" said <A>, and opened the door. <r_back>
    | 2 <A> took it back to the place where <he@A> had found it. <r_back>
r_back: 3 It <moved@N> away, and <A> was <sad> and <glad> at the same time.
    | 2 Every year the <N> came back to say thank you.
    | 1 The next morning, it was sitting at the door again. "Welcome home!" laughed <A>.

# Two children want one thing; how the quarrel goes (Q) decides how it ends.
quarrel: <intro> <q_both> <q_claim> <Q:q_fight> <q_after@Q> <q_end>
the_q: 3 the <O> | 1 the <D> <O>
q_both: 4 <when>, <he@A> and <mate> found <an_obj> in the <P:place@O>.
    | 3 <when>, a neighbour gave <A> and <mate> <an_obj> to share.
    | 2 <^he@A> and <mate> had <an_obj> and loved <it@O> very much.
q_claim: 3 "<^they@O> <is@O> mine!" <cried> <A>. "No, mine!" <cried> <B>.
    | 2 Both of them wanted <it@O>, and nobody wanted to wait.
    | 2 "I saw <it@O> first," said <A>. "But I need <it@O> more," said <B>.
q_fight: 3 They pulled and pulled until <the_q> fell to pieces. [broken] | 3 <B> took <the_q> and ran away. [away]
    | 3 <A> pushed <B>, and <he@B> fell and hurt <his@B> <bodypart>. [hurt]
    | 1 <A> threw <the_q> over the wall. [wall]
bodypart: 4 knee | 2 arm | 1 head
q_after.broken: 3 Now nobody could play with <it@O>. "It was my fault," <said> <A>.
    | 2 They looked at the pieces and were <very> <sad>.
q_after.away: 3 <A> did not run after <him@B>. In the evening <B> came back, because it was no fun to play alone.
    | 2 <A> sat down and cried until <B> brought <it@O> back.
q_after.hurt: 3 "I am sorry," said <A>, and helped <him@B> to stand up. | 2 <A> was <scared> and ran to get help.
q_after.wall: 2 They had to climb over the wall to get <it@O> back, and they climbed together.
    | 1 A man behind the wall threw <it@O> back and laughed.
q_end: 4 After that, <A> had <the_q> in the morning and <B> in the afternoon.
    | 3 "Let us share," said <B>, and so they did.
    | 2 They never quarrelled about <the_q> again.

# Baking: the dish F decides what is missing (J).
baking: <intro> <b_want> <b_need> <b_get> <b_bake> <b_end>
dish_c: 4 chocolate cake | 3 cherry pie | 3 carrot cake | 2 pizza | 2 loaf of bread
dish_v: 3 apple pie | 1 onion tart
a_dish: 6 a <F:dish_c> | 2 an <F:dish_v>
needed.chocolate-cake: 3 chocolate | 2 butter | 2 eggs
needed.cherry-pie: 4 cherries | 2 flour
needed.carrot-cake: 4 carrots | 2 sugar | 1 eggs
needed.pizza: 3 cheese | 3 tomatoes | 1 salt
needed.loaf-of-bread: 3 flour | 2 salt | 1 butter
needed.apple-pie: 4 apples | 2 sugar
needed.onion-tart: 3 onions | 2 cheese
b_want: 4 <when>, <he@A> and <his@A> <K:kin> wanted to make <a_dish>.
    | 3 <when>, <A> came home and <said>, "I am hungry!" <^his@A> <K:kin> wanted to make <a_dish>.
    | 2 Guests were coming, so <A> and <his@A> <K:kin> began to make <a_dish>.
b_need: 3 But they had no <J:needed@F>. | 2 "Oh dear, we have no <J:needed@F>," said <his@A> <K>.
b_get: 4 So <A> took a <container> and ran to the shop to buy some <J>.
    | 3 <A> went next door, where <mate> gave <him@A> some <J>.
    | 2 <A> walked to the <seller>, who sold <him@A> some <J> for <coins>.
container: 4 basket | 2 bag | 1 bucket
seller: 3 farmer | 2 old miller | 1 market woman
b_bake: 4 They put the <J> into a big bowl and mixed everything with a spoon.
    | 3 Back in the kitchen, <A> added the <J>, and <his@A> <K> lit the oven.
b_end: 4 Soon the <F> was ready, and the whole house smelled <smell>. <b_eat>
    | 2 But they forgot the time, and the <F> burned. <b_burnt>
    | 1 Then the dog jumped up and ate the whole <F>! <b_burnt>
smell: 3 wonderful | 2 good | 1 sweet
b_eat: 3 <A> ate <pieces>. | 2 They gave a piece to everyone who came to the door.
    | 2 "This is the best <F> in the world!" said <his@A> <K>.
pieces: 3 two pieces | 3 three pieces | 1 far too much
b_burnt: 3 They laughed and had bread and butter instead.
    | 2 "Never mind," <said> <his@A> <K>. "Tomorrow we will make another one."

# A fable: U is in trouble (S) and asks V, who helps or does not.
beast [n]: 6 fox | 5 mouse | 4 lion | 4 crow | 4 bear | 3 wolf | 3 hare | 3 frog | 2 tortoise | 2 goat | 1 donkey
fable: <f_open> <S:trouble> <f_ask@S> <f_reply>
f_open: 3 Once a <U:beast> and a <V:beast!U> lived in the same <wild>.
    | 3 Long ago, <a_nature> <U:beast> met a <V:beast!U> <meet>.
a_nature: 4 a proud | 3 a lazy | 2 a greedy | 2 an old | 1 a foolish
wild: 4 forest | 3 valley | 2 wood
meet: 3 near a river | 2 on a narrow path | 2 at the foot of a mountain
trouble: 4 Winter came, and the <U> had nothing to eat. [hungry] | 3 One night, the <U> fell into a deep hole. [hole]
    | 3 The <U> wanted to cross the river, but it could not swim. [river]
    | 2 The <U> had a thorn in its foot and could not walk. [thorn]
    | 2 A hunter came, and the <U> had nowhere to hide. [hunter]
f_ask.hungry: 3 "Please give me some food," it said to the <V>. | 1 "Have you anything to eat?" it asked the <V>.
f_ask.hole: 3 "Please pull me out!" it called to the <V>. | 1 "Is anybody there?" it cried, and the <V> heard it.
f_ask.river: 3 "Please carry me over the water," it said to the <V>. | 1 "Will you take me across?" it asked the <V>.
f_ask.thorn: 3 "Please pull out the thorn," it said to the <V>. | 1 "Oh, how it hurts!" it said to the <V>.
f_ask.hunter: 3 "Please hide me," it said to the <V>. | 1 "May I come into your house?" it asked the <V>.
f_reply: 4 "Of course," said the <V>. <f_did@S> <f_paid>
    | 3 "I have no time for you," said the <V>, and it went away. <f_alone@S> <f_sorry>
    | 2 "What will you give me for it?" asked the <V>. "My friendship," said the <U>. <f_did@S> <f_paid>
f_did.hungry: 3 It shared all its <beastfood> with the <U>. | 1 It cooked a pot of soup for the <U>.
beastfood: 3 nuts | 2 cheese | 2 honey | 1 corn
f_did.hole: 3 It let down a long branch, and the <U> climbed out.
    | 1 It brought a rope and pulled until the <U> was free.
f_did.river: 3 It took the <U> on its back and swam to the other side.
    | 1 It showed the <U> a bridge behind the trees.
f_did.thorn: It took the thorn between its teeth and pulled it out.
f_did.hunter: 3 It hid the <U> under some leaves until the hunter was gone. | 1 It led the hunter the wrong way.
f_alone.hungry: The <U> ate bark and grass until spring.
f_alone.hole: It took the <U> three days to climb out.
f_alone.river: The <U> had to walk round the whole lake.
f_alone.thorn: The <U> pulled out the thorn alone, and it hurt.
f_alone.hunter: The <U> jumped into the river and got away.
f_paid: 3 A year later, the <V> was caught in a net. The <U> heard it cry and bit through the ropes. <moral_good>
    | 2 When the <V> was old and ill, the <U> brought it <beastfood> every day. <moral_good>
moral_good: 3 A kind act is never lost. | 2 Whoever helps others is never alone.
    | 1 Small friends may be great friends.
f_sorry: 3 A year later, the <V> was caught in a net. "Now I have no time for you," said the <U>. <moral_bad>
    | 2 When the <V> was old and ill, nobody came to see it. <moral_bad>
    | 1 A year later, the <V> was in trouble, but the <U> helped it all the same. <moral_kind>
moral_bad: 3 Whoever does not help will not be helped. | 2 So it learned to be kind, but it learned too late.
moral_kind: "I do not want to be like you were," it said.

# A contest of kind J, won by A, by B, or given up for a friend.
contest: <intro> <c_when> <c_rival> <c_train@J> <c_mid> <c_end>
race: 4 running race [run] | 3 swimming race [swim] | 2 bicycle race [ride] | 2 skating race [skate]
c_when: 4 Every <season>, there was a <J:race> in <his@A> village.
    | 3 <when>, the teacher said, "Next week there will be a <J:race>!"
    | 2 The winner of the <J:race> would get <prize>.
prize: 3 a golden cup | 2 a silver cup | 2 a big cake | 1 a basket of fruit
c_rival: 3 <A> wanted to win, but <mate> was <very> fast.
    | 2 "I will win," said <A> to <mate>. "We will see!" said <B>.
c_train.run: 3 Every day, <he@A> ran up the hill and down again. | 1 Every morning, <he@A> ran to school.
c_train.swim: 3 Every day, <he@A> swam across the lake. | 1 Every morning, <he@A> swam in the cold sea.
c_train.ride: 3 Every day, <he@A> rode along the river. | 1 Every evening, <he@A> rode round the village.
c_train.skate: 3 Every day, <he@A> skated on the frozen pond. | 1 Every night, <he@A> dreamed of the ice.
c_mid: 4 When the day came, the two of them <raced@J> side by side.
    | 3 On the great day, <B> <raced@J> in front and <A> came close behind.
raced.run: ran
raced.swim: swam
raced.ride: rode
raced.skate: skated
c_end: 4 In the last moment, <A> <raced@J> past <B> and won. <c_won>
    | 4 <A> tried hard, but <B> was faster and won. <c_lost>
    | 3 Suddenly <B> <fell@J>. <A> stopped and helped <him@B>, so somebody else won. <c_kind>
fell.run: 2 fell over a stone | 1 fell and hurt <his@B> foot
fell.swim: 2 swallowed a lot of water | 1 called for help
fell.ride: 2 fell off the bicycle | 1 rode into a tree
fell.skate: 2 slipped on the ice | 1 broke through the ice
c_won: 3 <A> jumped for joy, and <B> was the first to shake <his@A> hand. | 2 "How fast you are!" said <B>.
c_lost: 3 <A> was <sad>, but <he@A> shook <his@B> hand. "Well done," <he@A> <said>.
    | 2 "Next time I will beat you," laughed <A>.
c_kind: 3 "You are the real winner," said <B>. | 2 Everyone said that <A> was the <best@T> <kid@A> of all.

# Learning a skill J.
lesson: <intro> <s_wish> <s_teach> <s_fail@J> <s_mood> <s_learn> <s_end@J>
skill: 5 swim | 4 ride a bicycle | 4 read | 3 play the piano | 3 skate | 2 whistle | 2 climb trees | 1 juggle
s_wish: 4 <^he@A> wanted to learn to <J:skill>, because all <his@A> friends could do it.
    | 3 "I wish I could <J:skill>," <he@A> said every <time>.
s_teach: 4 <when>, <his@A> <K:kin> began to teach <him@A>.
    | 2 <when>, <he@A> asked <his@A> <K:kin>, "Will you teach me?"
s_fail.swim: 3 At first, <he@A> swallowed a lot of water. | 2 <^he@A> sank like a stone.
s_fail.ride-a-bicycle: 3 At first, <he@A> fell off after two metres. | 2 <^he@A> rode straight into a bush.
s_fail.read: 3 At first, all the letters looked the same. | 2 <^he@A> read the first word, and it took a whole minute.
s_fail.play-the-piano: 3 At first, it sounded like cats at night. | 2 <^his@A> fingers went to all the wrong places.
s_fail.skate: 3 At first, <his@A> feet went two different ways.
    | 2 <^he@A> sat down on the ice more than <he@A> stood.
s_fail.whistle: 3 At first, only air came out. | 2 <^he@A> blew until <his@A> face was red.
s_fail.climb-trees: 3 At first, <he@A> got stuck on the lowest branch. | 2 <^he@A> tore <his@A> trousers on a branch.
s_fail.juggle: 3 At first, the balls fell on <his@A> head. | 2 One ball flew out of the window.
s_mood: 3 "I will never learn it!" <cried> <A>. "Try again," said <his@A> <K>.
    | 2 <A> was <sad>, but <he@A> tried again and again.
    | 2 <^his@A> <K> laughed, and then <A> laughed too. "Once more!" <he@A> said.
s_learn: 3 After <span>, <he@A> could do it. | 2 Then, <time2>, it suddenly worked.
span: 3 three days | 3 two weeks | 1 a whole month
time2: 3 one <weekday> | 2 on the tenth day
s_end.swim: 2 <A> swam across the whole lake. | 1 "I am a fish!" <cried> <A>.
s_end.ride-a-bicycle: 2 <A> rode to the sea and back. | 1 "Look, no hands!" <cried> <A>.
s_end.read: 2 <A> read a whole book to <his@A> <K>. | 1 Now <A> read every sign on the road.
s_end.play-the-piano: 2 <A> played a song for the whole family. | 1 Even the cat came to listen when <A> played.
s_end.skate: 2 <A> skated until it was dark. | 1 "I am flying!" <cried> <A>.
s_end.whistle: 2 <A> whistled all day, until everyone had had enough. | 1 All the birds answered when <A> whistled.
s_end.climb-trees: 2 From the top of the tree, <A> could see the whole village.
    | 1 <A> climbed so high that <his@A> <K> had to fetch a ladder.
s_end.juggle: 2 Now <A> could juggle with three balls. | 1 "Next time with eggs!" said <A>, but <his@A> <K> said no.

# Growing a plant J, which something (N) may eat.
plant: 4 sunflower [s] | 4 pumpkin [s] | 3 carrots [p] | 3 beans [p] | 2 strawberries [p] | 2 rose bush [s]
seeds: some <J>
seeds.s: a <J>
garden: <intro> <p_plant> <p_water> <p_wait> <p_grow> <p_end>
p_plant: 4 In spring, <he@A> planted <-J:plant> <seeds@J> <plot>.
    | 3 <^his@A> <K:kin> gave <him@A> some seeds, and <he@A> put them into the ground <plot>. <p_say>
p_say: "Now I must wait for my <J:plant>," <he@A> said.
plot: 4 behind the house | 3 beside the fence | 2 near the well | 1 under the window
p_water: 3 Every <time>, <A> gave <it@J> water and sang a song.
    | 2 <^he@A> watched the earth all day and pulled out the weeds.
    | 2 It did not rain for weeks, so <he@A> carried water from the river.
p_wait: 3 For a long time nothing happened, and <A> was <very> <sad>.
    | 2 "When will <they@J> grow?" <he@A> asked. "Be patient," said <mate>.
p_grow: 3 Then one day, there was a tiny green leaf. | 2 At last the <J> began to grow, a little every day.
p_end: 3 In <ripe>, the <J> <was@J> <size@J>. <p_share>
    | 2 But one night, a <N:pest> came and ate the <J>. <p_eaten>
    | 1 In <ripe>, a storm came, but the <J> <was@J> strong and did not break. <p_share>
ripe: 3 summer | 3 autumn
size: ready to eat
size.sunflower: taller than <A>
size.pumpkin: as big as a <big>
size.rose-bush: full of <colour> flowers
big: 3 chair | 2 wheel | 1 cow
pest: 4 rabbit | 3 goat | 2 mouse | 1 deer
p_share: 3 <A> was <very> <glad> and showed <it@J> to everyone.
    | 2 "I have grown <it@J> all alone," <he@A> <said>. <p_proud>
p_proud: 3 <^his@A> whole family came to look. | 2 The birds in the trees sang.
p_eaten: 3 <A> built a fence and began again.
    | 2 "It was hungry," <said> <A>, and planted new ones for both of them. | 1 <A> cried for two days.

# Something (O) of K's is broken; A tells the truth or blames the animal N.
truth: <intro> <t_scene> <t_break> <t_fear> <t_choice>
fragile: 5 vase | 4 plate | 3 cup | 3 lamp | 2 mirror | 1 clock
house_pet [n]: 5 cat | 4 dog | 1 parrot
t_scene: 4 <when>, <he@A> played with <his@A> <X:plaything> in the house.
    | 3 <when>, <he@A> was alone at home with <his@A> <X:plaything>.
    | 2 "Never play with your <X:plaything> in the house!" everyone told <A>. But <when2> <he@A> forgot it.
when2: 2 one day | 1 one <weather> <time>
plaything: 5 ball | 2 kite | 2 drum | 1 bow
t_break: 3 Suddenly there was a loud noise, and <his@A> <K:kin>'s <O:fragile> was in pieces.
    | 3 The <X> hit <his@A> <K:kin>'s <colour> <O:fragile>, and it broke.
t_fear: 3 <A> was <very> <scared>. | 2 <^his@A> heart beat fast. | 2 "What shall I do?" thought <A>.
t_choice: 4 When <his@A> <K> came home, <A> told <him@K> everything. <t_told>
    | 3 When <his@A> <K> came home, <A> said, "It was the <N:house_pet>!" <t_lied>
    | 2 <^he@A> hid the pieces <Y:hide>. <t_hid>
hide: 3 under the bed | 2 in a drawer | 1 in the garden
t_told: 3 "Thank you for telling the truth," said <his@A> <K>, and they mended the <O> together.
    | 2 <^his@A> <K> was <sad> about the <O>, but not angry with <A>.
t_lied: 3 But the <N> had been outside all day. "A lie is worse than a broken <O>," said <his@A> <K>. <t_sorry>
    | 2 So the <N> had to sleep outside. <A> could not sleep either. In the morning, <he@A> told the truth. <t_sorry>
t_hid: 3 But <his@A> <K> looked <Y> and found them. "Why did you not tell me?" <he@K> asked. <t_sorry>
    | 1 The next day, <he@A> told the truth after all. <t_sorry>
t_sorry: 3 <A> was ashamed and said sorry. | 2 "I will never do it again," <said> <A>.
    | 1 <A> gave <all_coins> for a new <O>.
all_coins: 2 all <his@A> money | 1 <his@A> last coin

# A journey by V to Z, and what was seen there (X, Y), told again at home.
vehicle: 4 train | 3 bus | 3 boat | 2 car | 1 balloon
goal: 4 sea | 3 mountains | 3 city | 2 castle | 2 island
a: a
a.v: an
sight.sea: 3 whale | 3 lighthouse | 2 red crab | 1 white ship
sight.mountains: 3 eagle [v] | 3 waterfall | 2 cave | 1 white cloud
sight.city: 3 tall tower | 3 clown | 2 elephant [v] | 1 street full of shops
sight.castle: 3 knight | 3 deep well | 2 king | 1 golden throne
sight.island: 3 turtle | 3 palm tree | 2 shipwreck | 1 green parrot
trip: <intro> <j_go> <j_way> <j_see> <j_event> <j_home>
j_go: 4 <when>, <he@A> and <his@A> <K:kin> travelled to the <Z:goal> by <V:vehicle>.
    | 3 "Shall we go to the <Z:goal>?" asked <his@A> <K:kin>, and so they took the <V:vehicle>.
j_way: 3 The <V> was <very> <speed>, and <A> looked out all the time. | 2 On the way, they sang songs and ate <snack>.
shouted: 3 cried | 2 shouted
speed: 3 slow | 3 fast | 2 full | 1 loud
snack: 3 sandwiches | 2 apples | 1 cold pancakes
j_see: 3 There they saw <-X:sight@Z> <a@X> <X> and <-Y:sight@Z!X> <a@Y> <Y>.
    | 2 "Look!" <shouted> <A>. There was <-X:sight@Z> <a@X> <X>! Later they saw <-Y:sight@Z!X> <a@Y> <Y> too.
j_event: 3 Then <A> could not see <his@A> <K> any more. <j_lost>
    | 2 Then it began to rain, and they ran back to the <V>. | 2 They stayed until the sun went down.
j_lost: <^he@A> was <very> <scared>, but <he@A> waited <wait@Z>, and soon <his@A> <K> came.
wait: near the gate
wait.sea: on the beach
wait.mountains: beside the path
wait.city: at the station
wait.island: under a tree
j_home: 3 At home, <A> told <mate> about the <X>. "I do not believe you," said <B>. <j_proof>
    | 2 In bed, <A> thought of the <Y> and of the <Z>, and then <he@A> slept.
    | 1 "Next year we will come back to the <Z>," said <his@A> <K>.
j_proof: 2 So <A> drew the <X> for <him@B>. | 1 So the next time, <B> came to the <Z> too.

# A noise (S) in the night, and who made it (N).
night: <intro> <n_wake> <n_think> <n_go> <n_find> <n_end>
noise: 4 scratching [scratch] | 3 knocking [knock] | 3 howling [howl] | 2 singing [sing]
n_wake: 4 One night, <he@A> heard a strange <S:noise> <nook>.
    | 3 It was dark, and everyone slept. Only <A> heard the <S:noise> <nook>.
nook: 4 under the bed | 3 behind the door | 3 at the window | 1 in the kitchen
n_think: 3 "It is a <monster>!" <he@A> <said>. | 2 <^he@A> thought of <monster>s and was <very> <scared>.
monster: 4 ghost | 3 dragon | 2 robber | 1 giant
n_go: 3 <A> lit a <light> and went to look. | 2 <^he@A> woke <mate>, and together they went to look.
    | 1 "Who is there?" <he@A> called, but nobody answered.
light: 3 candle | 2 lamp | 1 match
n_find: 3 The <S> stopped. It was only <N:culprit@S>! | 2 And what made the <S>? It was <N:culprit@S>!
culprit.scratch: 3 a mouse | 2 the cat | 1 a hedgehog
culprit.knock: 3 a branch | 2 a loose shutter | 1 a woodpecker
culprit.howl: 3 the wind | 2 the dog
culprit.sing: 3 a bird | 2 <his@A> <K:kin>
n_end: 3 <A> laughed and went back to bed. | 2 "You gave me a fright," <A> <said>, and soon <he@A> slept.
    | 2 After that, <A> was never <scared> of the dark again.
"##;

static COMPILED: LazyLock<Grammar> = LazyLock::new(|| Grammar::compile(GRAMMAR, "story"));

/// The slots `A` to `Z`.
const SLOTS: usize = 26;
/// How deep holes nest; a test measures the grammar.
const DEPTH: usize = 8;
/// No entry is kept in this slot.
const UNSET: u16 = u16::MAX;

/// One part of an option's text.
#[derive(Clone, Debug)]
enum Part {
    Text { text: String, glued: bool },
    Hole(Hole),
}

/// `<^-slot:rule@by!not>`; `glued` when no space stands before it.
#[derive(Clone, Copy, Debug)]
struct Hole {
    glued: bool,
    capital: bool,
    silent: bool,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Kept(u8),
    Draw { family: u16, keep: Option<u8>, by: Option<u8>, except: Option<u8> },
}

/// The text of one option, shared by all rules that took it over.
#[derive(Clone, Debug, Default)]
struct Entry {
    parts: Vec<Part>,
    tags: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Weighted {
    weight: u32,
    entry: u16,
}

#[derive(Clone, Debug, Default)]
struct Rule {
    options: Vec<Weighted>,
    total: u32,
}

/// A rule and its dependent sisters `rule.tag`, by tag.
#[derive(Clone, Debug, Default)]
struct Family {
    plain: Option<u16>,
    tagged: Vec<(u16, u16)>,
}

#[derive(Clone, Debug, Default)]
struct Grammar {
    entries: Vec<Entry>,
    rules: Vec<Rule>,
    families: Vec<Family>,
    /// ln of every weight and total, by value.
    logs: Vec<f64>,
    /// A one-hole entry that draws the first rule.
    start: u16,
}

impl Grammar {
    /// Panics on a malformed grammar: the only one is the constant above, and a test compiles it.
    fn compile(source: &str, start: &str) -> Grammar {
        let mut lines: Vec<String> = Vec::new();
        for line in source.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            match (line.starts_with(' '), lines.last_mut()) {
                (true, Some(last)) => last.push_str(line),
                _ => lines.push(line.to_owned()),
            }
        }
        let mut grammar = Grammar::default();
        let mut names = Names::default();
        let mut rules: HashMap<&str, u16> = HashMap::new();
        for line in &lines {
            let (head, body) = line.split_once(": ").unwrap_or_else(|| panic!("no rule in {line:?}"));
            let (name, shared) = split_tags(head);
            let mut rule = Rule::default();
            for option in body.split('|') {
                let (option, own) = split_tags(option.trim());
                let (weight, text) = match option.split_once(' ') {
                    Some((weight, text)) if weight.bytes().all(|b| b.is_ascii_digit()) => {
                        (weight.parse().unwrap_or(1), text)
                    }
                    _ => (1, option),
                };
                if let Some(other) = text.strip_prefix('=') {
                    let other = rules.get(other).unwrap_or_else(|| panic!("{other:?} is not known yet in {line:?}"));
                    let taken = &grammar.rules[usize::from(*other)].options;
                    rule.options.extend(taken.iter().map(|o| Weighted { weight: weight * o.weight, ..*o }));
                    continue;
                }
                let mut tags: Vec<u16> = own.iter().chain(&shared).map(|tag| names.tag(tag)).collect();
                tags.push(names.tag(&text.replace(' ', "-")));
                let text = if text == "_" { "" } else { text };
                let entry = Entry { parts: parse(text, &mut names), tags };
                rule.options.push(Weighted { weight, entry: grammar.entries.len() as u16 });
                grammar.entries.push(entry);
            }
            rule.total = rule.options.iter().map(|option| option.weight).sum();
            let id = grammar.rules.len() as u16;
            assert!(rules.insert(name, id).is_none(), "rule {name:?} twice");
            grammar.rules.push(rule);
        }
        let first = Entry { parts: parse(&format!("<{start}>"), &mut names), tags: Vec::new() };
        grammar.start = grammar.entries.len() as u16;
        grammar.entries.push(first);
        for name in names.families {
            let tagged = rules.iter().filter_map(|(rule, id)| {
                let tag = rule.strip_prefix(name.as_str())?.strip_prefix('.')?;
                Some((*names.tags.get(tag).unwrap_or_else(|| panic!("nothing has the tag of {rule:?}")), *id))
            });
            let tagged: Vec<_> = tagged.collect();
            let plain = rules.get(name.as_str()).copied();
            assert!(plain.is_some() || !tagged.is_empty(), "no rule {name:?}");
            grammar.families.push(Family { plain, tagged });
        }
        let most = grammar.rules.iter().map(|rule| rule.total).max().unwrap_or(0);
        grammar.logs = (0..=most).map(|weight| f64::from(weight).ln()).collect();
        grammar
    }

    fn log(&self, weight: u32) -> f64 {
        self.logs[weight as usize]
    }

    /// The log of the summed probability of all derivations of `text`, and their number.
    fn recognise(&self, text: &str) -> Option<(f64, usize)> {
        let text = text.as_bytes();
        let mut found: Vec<f64> = Vec::new();
        let mut open = vec![(Walk::start(self.start), 0, 0.0)];
        while let Some((mut walk, mut at, log_probability)) = open.pop() {
            loop {
                match walk.step(self) {
                    Step::Write(piece) => match piece.matches(text, at) {
                        Some(next) => at = next,
                        None => break,
                    },
                    Step::Choose(choice) => {
                        let log_total = self.log(choice.total(self, &walk));
                        for option in choice.options(self, &walk) {
                            let mut fork = walk;
                            fork.take(choice, option.entry);
                            open.push((fork, at, log_probability + self.log(option.weight) - log_total));
                        }
                        break;
                    }
                    Step::End => {
                        found.extend((at == text.len() && at > 0).then_some(log_probability));
                        break;
                    }
                }
            }
        }
        let top = found.iter().copied().reduce(f64::max)?;
        let sum: f64 = found.iter().map(|log| (log - top).exp()).sum();
        Some((top + sum.ln(), found.len()))
    }
}

/// Names met while compiling, numbered.
#[derive(Default)]
struct Names {
    tags: HashMap<String, u16>,
    families: Vec<String>,
}

impl Names {
    fn tag(&mut self, name: &str) -> u16 {
        let next = self.tags.len() as u16;
        *self.tags.entry(name.to_owned()).or_insert(next)
    }

    fn family(&mut self, name: &str) -> u16 {
        let known = self.families.iter().position(|family| family == name);
        known.unwrap_or_else(|| {
            self.families.push(name.to_owned());
            self.families.len() - 1
        }) as u16
    }
}

/// `text [tag,tag]` -> text, tags.
fn split_tags(text: &str) -> (&str, Vec<&str>) {
    match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((text, tags)) => (text.trim(), tags.split(',').map(str::trim).collect()),
        None => (text, Vec::new()),
    }
}

/// An option's text in parts; what has no space before it in the grammar has none in the story.
fn parse(text: &str, names: &mut Names) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut rest, mut spaced) = (text, true);
    while !rest.is_empty() {
        let (part, tail) = match rest.strip_prefix('<') {
            Some(inside) => {
                let (hole, tail) =
                    inside.split_once('>').unwrap_or_else(|| panic!("a hole without an end in {text:?}"));
                (Part::Hole(parse_hole(hole, !spaced, names)), tail)
            }
            None => {
                let (literal, tail) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
                let glued = !spaced && !literal.starts_with(' ');
                let ends_spaced = literal.ends_with(' ');
                let literal = literal.trim();
                if !literal.is_empty() {
                    parts.push(Part::Text { text: literal.to_owned(), glued });
                }
                spaced = ends_spaced;
                rest = tail;
                continue;
            }
        };
        parts.push(part);
        (rest, spaced) = (tail, false);
    }
    parts
}

fn parse_hole(hole: &str, glued: bool, names: &mut Names) -> Hole {
    let slot = |text: &str| match text.as_bytes() {
        [letter @ b'A'..=b'Z'] => Some(letter - b'A'),
        _ => None,
    };
    let strip = |text, mark| match str::strip_prefix(text, mark) {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (rest, capital) = strip(hole, '^');
    let (rest, silent) = strip(rest, '-');
    let what = if let Some(kept) = slot(rest) {
        What::Kept(kept)
    } else {
        let part = |rest, mark| match str::split_once(rest, mark) {
            Some((rest, name)) => (rest, Some(slot(name).unwrap_or_else(|| panic!("no slot in <{hole}>")))),
            None => (rest, None),
        };
        let (rest, except) = part(rest, '!');
        let (rest, by) = part(rest, '@');
        let (keep, rule) = match rest.split_once(':') {
            Some((keep, rule)) => (slot(keep), rule),
            None => (None, rest),
        };
        What::Draw { family: names.family(rule), keep, by, except }
    };
    Hole { glued, capital, silent, what }
}

/// A place in the grammar: plain data, so that a recogniser may fork it.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// (entry, next part), innermost last.
    frames: [(u16, u16); DEPTH],
    depth: usize,
    kept: [u16; SLOTS],
    glued: bool,
    capital: bool,
    /// A slot was read before it was written, or a tag has no rule: a fault of the grammar, which a test excludes.
    faulty: bool,
}

enum Step<'g> {
    Write(Piece<'g>),
    Choose(Choice),
    End,
}

/// A draw that is due.
#[derive(Clone, Copy, Debug)]
struct Choice {
    rule: u16,
    keep: Option<u8>,
    silent: bool,
    except: Option<u8>,
}

impl Choice {
    /// The options left, each with its weight.
    fn options<'g>(&self, grammar: &'g Grammar, walk: &Walk) -> impl Iterator<Item = Weighted> + 'g {
        let out = self.except.map_or(UNSET, |slot| walk.kept[usize::from(slot)]);
        let options = &grammar.rules[usize::from(self.rule)].options;
        options.iter().copied().filter(move |option| option.entry != out)
    }

    /// The sum of their weights.
    fn total(&self, grammar: &Grammar, walk: &Walk) -> u32 {
        match self.except {
            None => grammar.rules[usize::from(self.rule)].total,
            Some(_) => self.options(grammar, walk).map(|option| option.weight).sum(),
        }
    }
}

impl Walk {
    fn start(entry: u16) -> Walk {
        let mut walk = Walk {
            frames: [(0, 0); DEPTH],
            depth: 0,
            kept: [UNSET; SLOTS],
            glued: false,
            capital: false,
            faulty: false,
        };
        walk.enter(entry);
        walk
    }

    fn enter(&mut self, entry: u16) {
        self.frames[self.depth] = (entry, 0);
        self.depth += 1;
    }

    /// Answers a [`Step::Choose`].
    fn take(&mut self, choice: Choice, entry: u16) {
        if let Some(slot) = choice.keep {
            self.kept[usize::from(slot)] = entry;
        }
        if !choice.silent {
            self.enter(entry);
        }
    }

    /// Goes on to the next text or the next choice; a rule of one option is no choice.
    fn step<'g>(&mut self, grammar: &'g Grammar) -> Step<'g> {
        while self.depth > 0 {
            let (entry, at) = &mut self.frames[self.depth - 1];
            let parts = &grammar.entries[usize::from(*entry)].parts;
            let Some(part) = parts.get(usize::from(*at)) else {
                self.depth -= 1;
                continue;
            };
            *at += 1;
            if usize::from(*at) == parts.len() {
                self.depth -= 1;
            }
            let hole = match part {
                Part::Text { text, glued } => {
                    let piece = Piece { text, glued: *glued || self.glued, capital: self.capital };
                    (self.glued, self.capital) = (false, false);
                    return Step::Write(piece);
                }
                Part::Hole(hole) => hole,
            };
            self.glued |= hole.glued;
            self.capital |= hole.capital;
            match hole.what {
                What::Kept(slot) => match self.kept[usize::from(slot)] {
                    UNSET => self.faulty = true,
                    entry => self.enter(entry),
                },
                What::Draw { family, keep, by, except } => {
                    let Some(rule) = self.rule_for(grammar, family, by) else {
                        self.faulty = true;
                        continue;
                    };
                    let choice = Choice { rule, keep, silent: hole.silent, except };
                    match grammar.rules[usize::from(rule)].options[..] {
                        [only] => self.take(choice, only.entry),
                        _ => return Step::Choose(choice),
                    }
                }
            }
        }
        Step::End
    }

    /// The rule of the first tag of slot `by` that the family knows, or else the plain one.
    fn rule_for(&mut self, grammar: &Grammar, family: u16, by: Option<u8>) -> Option<u16> {
        let family = &grammar.families[usize::from(family)];
        let Some(slot) = by else { return family.plain };
        let kept = self.kept[usize::from(slot)];
        if kept == UNSET {
            self.faulty = true;
            return family.plain;
        }
        let tags = &grammar.entries[usize::from(kept)].tags;
        let rule_of = |tag: &u16| family.tagged.iter().find(|(of, _)| of == tag).map(|(_, rule)| *rule);
        tags.iter().find_map(rule_of).or(family.plain)
    }
}

/// Text that is due, with the space and the capital it wants.
struct Piece<'g> {
    text: &'g str,
    glued: bool,
    capital: bool,
}

impl Piece<'_> {
    fn append(&self, text: &mut String, first: bool) {
        if !self.glued && !first {
            text.push(' ');
        }
        let at = text.len();
        text.push_str(self.text);
        if self.capital {
            text[at..].get_mut(..1).into_iter().for_each(str::make_ascii_uppercase);
        }
    }

    /// Where the text goes on behind this piece, if it stands at `at`.
    fn matches(&self, text: &[u8], at: usize) -> Option<usize> {
        let space = usize::from(!self.glued && at > 0);
        let rest = text.get(at..)?;
        let rest = if space == 1 { rest.strip_prefix(b" ")? } else { rest };
        let (piece, end) = (self.text.as_bytes(), at + space + self.text.len());
        let same = match (self.capital, piece, rest) {
            (true, [a, piece @ ..], [b, rest @ ..]) => a.to_ascii_uppercase() == *b && rest.starts_with(piece),
            _ => rest.starts_with(piece),
        };
        same.then_some(end)
    }
}

/// Counter-based: draw `i` of story `n` is a hash of (seed, n, i).
struct SplitMix(u64);

impl SplitMix {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

    fn at(seed: u64, n: u64) -> SplitMix {
        SplitMix(mix(mix(seed.wrapping_add(Self::GOLDEN)) ^ n.wrapping_mul(Self::GOLDEN)))
    }

    /// Below `total`, uniform to within 2^-64 for each number.
    fn below(&mut self, total: u32) -> u32 {
        self.0 = self.0.wrapping_add(Self::GOLDEN);
        ((u128::from(mix(self.0)) * u128::from(total)) >> 64) as u32
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every text a rule can write with its summed probability and number of derivations; `None` beyond `limit`.
    fn all_texts(grammar: &Grammar, start: u16, limit: usize) -> Option<(HashMap<String, f64>, usize)> {
        let (mut texts, mut derivations) = (HashMap::new(), 0);
        let mut open = vec![(Walk::start(start), String::new(), 1.0)];
        while let Some((mut walk, mut text, p)) = open.pop() {
            loop {
                match walk.step(grammar) {
                    Step::Write(piece) => {
                        let first = text.is_empty();
                        piece.append(&mut text, first);
                    }
                    Step::Choose(choice) => {
                        let total = f64::from(choice.total(grammar, &walk));
                        for option in choice.options(grammar, &walk) {
                            let mut fork = walk;
                            fork.take(choice, option.entry);
                            open.push((fork, text.clone(), p * f64::from(option.weight) / total));
                        }
                        break;
                    }
                    Step::End if walk.faulty => return None,
                    Step::End => {
                        derivations += 1;
                        *texts.entry(text).or_insert(0.0) += p;
                        break;
                    }
                }
            }
            if derivations + open.len() > limit {
                return None;
            }
        }
        Some((texts, derivations))
    }

    #[test]
    fn a_small_grammar_by_hand() {
        let source = "boy [m]: 2 Tom | Ben\ngirl [f]: Ann\nname: =boy | =girl\nhe.m: he\nhe.f: she\nvery: 3 _ | very\n\
            s: <A:name> met <B:name!A>. \"<^he@A> was <very> glad,\" said <B>.";
        let grammar = Grammar::compile(source, "s");
        let (texts, derivations) = all_texts(&grammar, grammar.start, 1000).unwrap();
        assert_eq!((texts.len(), derivations), (12, 12));
        assert!((texts.values().sum::<f64>() - 1.0).abs() < 1e-12);
        // Tom 2/4, then Ann 1/2 of those left, then no "very" 3/4.
        let text = "Tom met Ann. \"He was glad,\" said Ann.";
        assert!((texts[text] - 0.5 * 0.5 * 0.75).abs() < 1e-12);
        for (text, p) in &texts {
            let (log, derivations) = grammar.recognise(text).unwrap();
            assert!((log - p.ln()).abs() < 1e-12 && derivations == 1, "{text}");
        }
        assert_eq!(grammar.recognise("Tom met Ann. \"She was glad,\" said Ann."), None); // the pronoun is Tom's
        assert_eq!(grammar.recognise("Tom met Tom. \"He was glad,\" said Tom."), None);
    }

    #[test]
    fn an_ambiguous_grammar_is_seen_and_summed() {
        let grammar = Grammar::compile("s: 1 <a> c | 2 x y c\na: x y | z", "s");
        let (log, derivations) = grammar.recognise("x y c").unwrap();
        assert_eq!(derivations, 2);
        assert!((log.exp() - (1.0 / 6.0 + 2.0 / 3.0)).abs() < 1e-12);
    }

    /// Each rule that can be enumerated: its probabilities sum to one, and no text has two derivations.
    #[test]
    fn every_small_rule_sums_to_one_and_is_unambiguous() {
        let mut grammar = Grammar::compile(GRAMMAR, "story");
        let (mut checked, rules) = (0, grammar.families.len());
        for family in 0..rules {
            if grammar.families[family].plain.is_none() {
                continue;
            }
            let draw = What::Draw { family: family as u16, keep: None, by: None, except: None };
            let hole = Hole { glued: false, capital: false, silent: false, what: draw };
            grammar.entries.push(Entry { parts: vec![Part::Hole(hole)], tags: Vec::new() });
            let start = grammar.entries.len() as u16 - 1;
            let Some((texts, derivations)) = all_texts(&grammar, start, 60_000) else { continue };
            let name = texts.keys().next();
            assert!((texts.values().sum::<f64>() - 1.0).abs() < 1e-9, "{name:?}");
            assert_eq!(texts.len(), derivations, "{name:?} and others are ambiguous");
            checked += 1;
        }
        assert!(checked > 60, "only {checked} of {rules} rules could be enumerated");
    }

    #[test]
    fn weights_are_positive_and_options_differ() {
        let grammar = &*COMPILED;
        for rule in &grammar.rules {
            assert!(rule.options.iter().all(|option| option.weight > 0));
            assert_eq!(rule.options.iter().map(|option| option.weight).sum::<u32>(), rule.total);
            let parts = rule.options.iter().map(|o| format!("{:?}", grammar.entries[usize::from(o.entry)].parts));
            let distinct: HashSet<String> = parts.collect();
            assert_eq!(distinct.len(), rule.options.len(), "{distinct:?}");
        }
    }

    /// Every slot is written before it is read, every tag has its rule, nesting fits, and every rule is used.
    #[test]
    fn the_grammar_has_no_faults() {
        let grammar = &*COMPILED;
        let mut used = HashSet::new();
        for n in 0..20_000 {
            let (mut walk, mut draws) = (Walk::start(grammar.start), SplitMix::at(99, n));
            let mut text = String::new();
            loop {
                match walk.step(grammar) {
                    Step::Write(piece) => {
                        let first = text.is_empty();
                        piece.append(&mut text, first);
                    }
                    Step::Choose(choice) => {
                        let options: Vec<Weighted> = choice.options(grammar, &walk).collect();
                        // Evenly, to meet the rare ones.
                        let option = options[draws.below(options.len() as u32) as usize];
                        used.insert(option.entry);
                        walk.take(choice, option.entry);
                    }
                    Step::End => break,
                }
                assert!(walk.depth < DEPTH && !walk.faulty, "after {text:?}");
            }
        }
        let rules = grammar.rules.iter().filter(|rule| rule.options.len() > 1);
        let unused = rules.flat_map(|rule| &rule.options).filter(|option| !used.contains(&option.entry));
        let unused: Vec<_> = unused.map(|option| &grammar.entries[usize::from(option.entry)].parts).collect();
        assert!(unused.is_empty(), "never used: {unused:?}");
    }

    #[test]
    fn every_story_has_one_derivation_and_the_stated_probability() {
        for (n, story) in Stories::new(7).take(4000).enumerate() {
            let (log, derivations) =
                COMPILED.recognise(story.text.trim_end()).unwrap_or_else(|| panic!("{}", story.text));
            assert_eq!(derivations, 1, "story {n}: {}", story.text);
            assert!((log - story.log_probability).abs() < 1e-9, "story {n}: {log} and {}", story.log_probability);
        }
    }

    #[test]
    fn a_wrong_pronoun_or_word_has_no_probability() {
        let (mut swapped, mut n) = (0, 0);
        for story in Stories::new(3).take(500) {
            assert!(log_probability(&story.text).is_some());
            if let Some(at) = story.text.find(" he ") {
                let wrong = format!("{} she {}", &story.text[..at], &story.text[at + 4..]);
                assert_eq!(log_probability(&wrong), None, "{wrong}");
                swapped += 1;
            }
            n += usize::from(log_probability(&story.text.replace(". ", ".  ")).is_some());
        }
        assert!(swapped > 50 && n == 0);
        for text in
            ["", "\n", " ", "Once", "Once there was", "\u{e9}t\u{e9}", "Once there was a kind boy called Tom.\n\n"]
        {
            assert_eq!(log_probability(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_seed_and_the_number_decide_everything() {
        let stories = Stories::new(1);
        assert_eq!(stories.story(5), stories.story(5));
        assert_eq!(stories.clone().nth(5), Some(stories.story(5)));
        assert_ne!(stories.story(5), stories.story(6));
        assert_ne!(stories.story(5), Stories::new(2).story(5));
        let (text, sum) = corpus(1, 5000);
        assert!(text.len() >= 5000 && text.ends_with('\n'));
        let lines: Vec<Story> = stories.take(text.lines().count()).collect();
        assert_eq!(text, lines.iter().map(|story| story.text.as_str()).collect::<String>());
        assert!((sum - lines.iter().map(|story| story.log_probability).sum::<f64>()).abs() < 1e-9);
        assert_eq!(corpus(1, 0), (String::new(), 0.0));
    }

    /// Checked on the text alone: articles, and the hero's pronoun right after the first sentence.
    #[test]
    fn articles_and_pronouns_agree() {
        let mut seen = [0; 2];
        for Story { text, .. } in Stories::new(13).take(5000) {
            let words: Vec<&str> = text.split([' ', '\n']).map(|word| word.trim_matches('"')).collect();
            for pair in words.windows(2) {
                let vowel = pair[1].starts_with(['a', 'e', 'i', 'o', 'u']);
                match pair[0] {
                    "a" | "A" => assert!(!vowel, "{text}"),
                    "an" | "An" => assert!(vowel, "{text}"),
                    _ => {}
                }
            }
            let Some((first, rest)) = text.split_once(". ") else { continue };
            let boy = first.split(' ').any(|word| word == "boy" || word == "boy,");
            for (i, pronouns) in [["He ", "His "], ["She ", "Her "]].into_iter().enumerate() {
                if pronouns.iter().any(|pronoun| rest.starts_with(pronoun)) {
                    assert_eq!(boy, i == 0, "{text}");
                    seen[i] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&n| n > 500), "{seen:?}");
    }

    /// What a word-level tokenizer leans on.
    #[test]
    fn spacing_is_regular() {
        for Story { text, .. } in Stories::new(11).take(3000) {
            let line = text.strip_suffix('\n').unwrap();
            assert!(line.bytes().all(|b| b.is_ascii_alphabetic() || b" .,!?\"'-".contains(&b)), "{line}");
            let mut open = false;
            let bytes = [b" ", line.as_bytes(), b" "].concat();
            for near in bytes.windows(3) {
                let &[before, it, after] = near else { unreachable!() };
                let fits = match it {
                    b' ' => before != b' ' && after != b' ',
                    b'.' | b',' | b'!' | b'?' => before.is_ascii_alphabetic() && (after == b' ' || after == b'"'),
                    b'"' => {
                        open = !open;
                        if open {
                            before == b' ' && after.is_ascii_alphabetic()
                        } else {
                            b".,!?".contains(&before) && after == b' '
                        }
                    }
                    b'\'' | b'-' => before.is_ascii_alphabetic() && after.is_ascii_alphabetic(),
                    _ => true,
                };
                assert!(fits, "{line}");
            }
            assert!(!open, "{line}");
            let begins = line.split(['.', '!', '?']).map(|s| s.trim_start()).filter(|s| !s.is_empty());
            assert!(
                begins.into_iter().next().is_some_and(|s| s.starts_with(|c: char| c.is_ascii_uppercase() || c == '"'))
            );
            let (words, ends) = (line.split(' ').count(), line.matches(['.', '!', '?']).count());
            assert!((25..=110).contains(&words) && (4..=16).contains(&ends), "{words} words, {ends} ends: {line}");
        }
    }

    /// `cargo test --release -- --ignored --nocapture stories::tests::report`
    #[test]
    #[ignore = "prints figures"]
    fn report() {
        for story in Stories::new(2024).take(10) {
            println!("{:7.2}  {}", story.log_probability, story.text.trim_end());
        }
        let start = std::time::Instant::now();
        let (text, sum) = corpus(5, 64 << 20);
        let seconds = start.elapsed().as_secs_f64();
        let (stories, bytes) = (text.lines().count() as f64, text.len() as f64);
        let words: Vec<&str> = text.split_whitespace().map(|w| w.trim_matches(['.', ',', '!', '?', '"'])).collect();
        let distinct: HashSet<&str> = words.iter().copied().collect();
        let lines: HashSet<&str> = text.lines().collect();
        let n = words.len() as f64;
        println!("{:.1} MB/s; {stories} stories, {} distinct", bytes / seconds / 1e6, lines.len());
        println!(
            "per story: {:.1} words, {:.1} bytes, {:.3} nats; {:.4} nats/word, {:.5} nats/byte, {:.4} bits/byte",
            n / stories,
            bytes / stories,
            -sum / stories,
            -sum / n,
            -sum / bytes,
            -sum / bytes / 2f64.ln()
        );
        let lower: HashSet<String> = distinct.iter().map(|word| word.to_lowercase()).collect();
        println!("{} distinct words, {} without case", distinct.len(), lower.len());
        let mut shape: Vec<usize> = text.lines().take(100_000).map(|line| line.split(' ').count()).collect();
        shape.sort_unstable();
        println!(
            "words: least {}, 5% {}, median {}, 95% {}, most {}",
            shape[0], shape[5000], shape[50_000], shape[95_000], shape[99_999]
        );
        let start = std::time::Instant::now();
        let derived =
            text.lines().filter(|line| COMPILED.recognise(line).is_some_and(|(_, derivations)| derivations == 1));
        let derived = derived.count() as f64;
        println!("{derived} have one derivation, {:.1} us each", start.elapsed().as_secs_f64() / stories * 1e6);
    }
}
