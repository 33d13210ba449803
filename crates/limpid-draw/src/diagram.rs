//! Diagrams of a model with its own shapes, as SVG: the whole, a block, attention, what goes in and what comes out.
//! They are read off the ops, so they are true of every variant; symbols, names and letters are those of `names`.

use super::picture::scene::{Fill, Mark, Scene, Side, Text, text_width};
use super::table::cut;
use limpid_base::nearest::nearest;
use limpid_base::plural::plural;
use limpid_base::units::commas;
use limpid_core::config::{Axis, Config, Mask, NormKind, NormPlace, axis};
use limpid_core::model::{Mode, Model, Module};
use limpid_core::ops::{Access, IGNORE, Op, Region, Scoring};
use limpid_trace::labels::{Labels, label};
use limpid_trace::names::{self, Notation, makes};
use limpid_trace::ranking::greatest;
use limpid_trace::{Trace, TraceError, shape};

axis! {
    /// A diagram.
    Diagram, "diagram" {
        /// From token ids to probabilities.
        Model = "model",
        /// A step of training.
        Training = "training",
        /// Every tensor of one block.
        Block = "block",
        /// One head of attention.
        Head = "head",
        /// All heads and what becomes of them.
        Attention = "attention",
        /// Matrix products of attention.
        Products = "products",
        /// A batch of tokens.
        Input = "input",
        /// The loss of a few tokens.
        Loss = "loss",
        /// What each layer reads and writes.
        Layers = "layers",
        /// Attention with (B, C, T) instead of (B, T, C).
        Sketch = "sketch",
    }
}

impl Diagram {
    /// What it shows.
    pub fn about(self) -> &'static str {
        match self {
            Diagram::Model => "the whole model, from token ids to probabilities",
            Diagram::Training => "a step of training, round and round",
            Diagram::Block => "one block: every op with its tensors and parameters",
            Diagram::Head => "one head of attention, step by step",
            Diagram::Attention => "all heads side by side, and how they become one output",
            Diagram::Products => "the matrix products of attention, with their shapes",
            Diagram::Input => "the batch that goes in: tokens, ids, positions",
            Diagram::Loss => "cross-entropy worked out for the first tokens: probabilities, target, -ln p",
            Diagram::Layers => "what each layer reads and writes",
            Diagram::Sketch => "attention with a token to the right of another, as it is easier to draw",
        }
    }

    /// The diagram of that name.
    ///
    /// # Errors
    /// What there is, and the nearest.
    pub fn named(name: &str) -> Result<Diagram, String> {
        Diagram::ALL.iter().copied().find(|diagram| diagram.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Diagram::ALL.iter().map(|diagram| diagram.name()).collect();
            let near = nearest(name, names.iter().copied()).map(|near| format!("; did you mean `{near}`?"));
            format!("there are {}, and `list`{}", names.join(", "), near.unwrap_or_default())
        })
    }

    /// Whether it shows the tokens of a run.
    pub fn needs_run(self) -> bool {
        matches!(self, Diagram::Input | Diagram::Loss)
    }

    /// Whose words it has where none are asked for: those of the program that it is about.
    pub fn notation(self) -> Notation {
        match self {
            Diagram::Layers | Diagram::Sketch => Notation::Llmc,
            _ => Notation::Limpid,
        }
    }

    /// It as SVG, of a model built for [`Mode::Inspect`], whose batch and context are B and T; `None` if it needs a
    /// run. Tensors and axes are called as `notation` does.
    pub fn of_model(self, model: &Model, notation: Notation) -> Option<String> {
        let Mode::Inspect { batch, context } = model.mode else { return None };
        let drawing = Drawing::new(model, notation, (batch, context));
        (!self.needs_run()).then(|| drawing.draw(self))
    }

    /// It as SVG, with the tokens of a run.
    ///
    /// # Errors
    /// If the run has not what it shows.
    pub fn of_run(self, trace: &Trace, labels: &Labels, notation: Notation) -> Result<String, TraceError> {
        let mut drawing = Drawing::new(trace.model(), notation, trace.size());
        match self {
            Diagram::Input => drawing.input(trace, labels),
            Diagram::Loss => drawing.loss(trace, labels)?,
            _ => return Ok(drawing.draw(self)),
        }
        Ok(drawing.finish(self))
    }
}

/// The grid that everything stands on.
const EDGE: f64 = 24.0;
const LINE: f64 = 18.0;
const GAP: f64 = 26.0;
const SMALL: f64 = 11.0;
/// Most characters of a letter for an axis: a longer one is a word.
const SHORT: usize = 4;
/// Kinds of boxes.
const PLAIN: Fill = Fill::Box(0);
const MIXES: Fill = Fill::Box(1); // attention: tokens are mixed
const MAPS: Fill = Fill::Box(2); // matrices
const BENDS: Fill = Fill::Box(3); // functions of one number
const EVENS: Fill = Fill::Box(4); // norms
const STREAM: Fill = Fill::Box(5); // the residual stream

/// A diagram that is being drawn.
struct Drawing<'a> {
    model: &'a Model,
    c: &'a Config,
    notation: Notation,
    b: usize,
    t: usize,
    marks: Vec<Mark>,
    size: [f64; 2],
}

/// A matrix's rows and columns: what they are, and how many.
type Sizes<'a> = [(&'a str, usize); 2];

/// Axes with their sizes.
type Shape<'a> = &'a [(&'static str, usize)];

/// A line in a box: symbol, name, shape.
type Row = [String; 3];

impl<'a> Drawing<'a> {
    fn new(model: &'a Model, notation: Notation, (b, t): (usize, usize)) -> Drawing<'a> {
        Drawing { model, c: &model.config, notation, b, t, marks: vec![], size: [0.0, 0.0] }
    }

    fn draw(mut self, diagram: Diagram) -> String {
        match diagram {
            Diagram::Model => self.whole(),
            Diagram::Training => self.training(),
            Diagram::Block => self.block(),
            Diagram::Head => self.head(),
            Diagram::Attention => self.attention(),
            Diagram::Products => self.products(),
            Diagram::Layers => self.layers(),
            Diagram::Sketch => self.sketch(),
            Diagram::Input | Diagram::Loss => {}
        }
        self.finish(diagram)
    }

    /// Title above, letters below.
    fn finish(mut self, diagram: Diagram) -> String {
        let c = self.c;
        let axes = [("batch", "batch", self.b), ("pos", "tokens", self.t)].into_iter().chain(names::sizes(c));
        let entry = |(axis, word, n): (&'static str, &str, usize)| {
            let letter = self.notation.letter_in(axis, c);
            // a letter that is a word says what it is
            let word = if letter.len() > SHORT || letter == word { String::new() } else { format!(" {word}") };
            format!("{letter}{word} {}", commas(n as u64))
        };
        let legend: Vec<String> = axes.map(entry).collect();
        let (mut x, mut y) = (0.0, self.size[1] + 30.0);
        let wide = self.size[0].max(420.0);
        for text in legend {
            let long = text_width(&text, SMALL) + 18.0;
            if x > 0.0 && x + long > wide {
                (x, y) = (0.0, y + LINE);
            }
            self.soft([x, y], Side::Start, text);
            x += long;
        }
        let whose = match self.notation {
            Notation::Limpid => String::new(),
            other => format!(", in the words of {}", other.whose()),
        };
        let title = Text { bold: true, ..Text::new([0.0, -40.0], 16.0, diagram.about()) };
        let below = format!("{}, {} parameters{whose}", variant(c), commas(self.model.parameter_count() as u64));
        let wide = wide.max(text_width(diagram.about(), 16.0)).max(text_width(&below, SMALL));
        self.marks.push(Mark::Text(title));
        self.soft([0.0, -20.0], Side::Start, below.clone());
        let size = [wide + 2.0 * EDGE, y + 64.0 + EDGE];
        let marks = super::picture::scene::moved(self.marks, [EDGE, EDGE + 52.0]);
        Scene { size, title: diagram.about().into(), about: below, marks }.svg()
    }

    // ---- marks

    fn room(&mut self, x: f64, y: f64) {
        self.size = [self.size[0].max(x), self.size[1].max(y)];
    }

    fn put(&mut self, text: Text) {
        let end = match text.side {
            Side::Start => text.at[0] + text_width(&text.text, text.size) * 0.95,
            Side::Middle => text.at[0] + text_width(&text.text, text.size) / 2.0,
            Side::End => text.at[0],
        };
        if text.at[1] >= 0.0 {
            self.room(end, text.at[1] + 4.0);
        }
        self.marks.push(Mark::Text(text));
    }

    fn say(&mut self, at: [f64; 2], side: Side, text: impl Into<String>) {
        self.put(Text { side, ..Text::new(at, 12.0, text) });
    }

    fn bold(&mut self, at: [f64; 2], side: Side, text: impl Into<String>) {
        self.put(Text { side, bold: true, ..Text::new(at, 13.0, text) });
    }

    fn mono(&mut self, at: [f64; 2], side: Side, text: impl Into<String>) {
        self.put(Text { side, mono: true, ..Text::new(at, SMALL, text) });
    }

    fn soft(&mut self, at: [f64; 2], side: Side, text: impl Into<String>) {
        self.put(Text { side, fill: Fill::Soft, ..Text::new(at, SMALL, text) });
    }

    fn rect(&mut self, at: [f64; 4], fill: Fill) {
        self.room(at[0] + at[2], at[1] + at[3]);
        self.marks.push(Mark::Rect { at, fill, edge: true, hint: String::new() });
    }

    fn arrow(&mut self, points: &[[f64; 2]]) {
        self.line(points, true, 0);
    }

    fn line(&mut self, points: &[[f64; 2]], arrow: bool, dashes: usize) {
        self.marks.push(Mark::Line { points: points.to_vec(), fill: Fill::Soft, width: 1.4, dashes, arrow });
    }

    /// A box with a title and a row for each tensor in it; where it ends below.
    fn node(&mut self, [x, y, w]: [f64; 3], fill: Fill, title: &str, note: &str, rows: &[Row]) -> f64 {
        let high = 28.0 + LINE * rows.len() as f64 + if rows.is_empty() { 0.0 } else { 4.0 };
        self.rect([x, y, w, high], fill);
        self.bold([x + 12.0, y + 19.0], Side::Start, title);
        self.soft([x + w - 12.0, y + 19.0], Side::End, note);
        let widths = |cell: usize| rows.iter().map(move |row| text_width(&row[cell], SMALL)).fold(0.0, f64::max);
        let column = (widths(0) + 10.0).max(if w < 300.0 { 44.0 } else { 96.0 });
        for (i, [symbol, name, shape]) in rows.iter().enumerate() {
            let at = y + 38.0 + LINE * i as f64;
            let room = w - 24.0 - column;
            // where there is no room for all, the letters go, and then the name, which a symbol stands for
            let sizes = sizes_of(shape);
            let fits = |name: &str, shape: &str| text_width(name, SMALL) + text_width(shape, SMALL) + 8.0 <= room;
            let name = if fits(name, sizes) || symbol.is_empty() { name } else { "" };
            let shape = if fits(name, shape) { shape } else { sizes };
            self.mono([x + 12.0, at], Side::Start, symbol);
            self.soft([x + 12.0 + column, at], Side::Start, name);
            self.mono([x + w - 12.0, at], Side::End, shape);
        }
        y + high
    }

    /// A box below what ends at `y`, with an arrow to it; where it ends.
    fn below(&mut self, [x, y, w]: [f64; 3], fill: Fill, title: &str, note: &str, rows: &[Row]) -> f64 {
        self.arrow(&[[x + w / 2.0, y], [x + w / 2.0, y + GAP]]);
        self.node([x, y + GAP, w], fill, title, note, rows)
    }

    // ---- what is known of tensors

    /// What the notation calls it inside its block; empty where it has no word for it.
    fn symbol(&self, name: &str) -> String {
        let home = names::lookup(name).and_then(|(_, block)| block);
        names::called_within(name, self.c, self.notation, home).unwrap_or_default()
    }

    /// The same, or its name.
    fn call(&self, name: &str) -> String {
        let symbol = self.symbol(name);
        if symbol.is_empty() { names::within(name, Some(0)).into() } else { symbol }
    }

    /// What one head's part of a tensor is called; where there is no word for it, what computes it.
    fn of_a_head(&self, hook: &str) -> String {
        let name = format!("blocks.0.attn.hook_{hook}");
        names::called_by_head(&name, self.c, self.notation, Some(0)).unwrap_or_else(|| self.computed(&name))
    }

    /// The right side of a tensor's formula.
    fn computed(&self, name: &str) -> String {
        let formula = names::formula_in(self.model, name, self.notation).unwrap_or_default();
        formula.split_once(" = ").map_or(self.call(name), |(_, right)| right.into())
    }

    /// A matrix as a factor from the right.
    fn factor(&self, name: &str) -> String {
        let turned = if names::is_stored(name, self.c, self.notation) { "ᵀ" } else { "" };
        self.call(name) + turned
    }

    /// Letters of a tensor's axes: `B,T,C`.
    fn letters(&self, name: &str, axes: &[&str]) -> String {
        self.notation.letters(name, axes, self.c).replace(' ', ",")
    }

    /// Letters and sizes of a tensor: `(B,T,C) = (1, 4, 6)`.
    fn shape_of(&self, name: &str, shape: Shape) -> String {
        let axes: Vec<&str> = shape.iter().map(|(axis, _)| *axis).collect();
        let sizes: Vec<String> = shape.iter().map(|(_, n)| commas(*n as u64)).collect();
        format!("({}) = ({})", self.letters(name, &axes), sizes.join(", "))
    }

    /// A value's features.
    fn value(&self) -> (&'static str, usize) {
        (names::value_axis(self.c), self.c.d_value())
    }

    /// That of a tensor or a parameter, its axes in the order of the notation.
    fn shape(&self, name: &str) -> String {
        // a norm's mean is as large as what it divides by, and no op's own
        let stored = name.replace("hook_mean", "hook_scale");
        let Some((mut axes, mut sizes)) = shape(self.model, &stored, (self.b, self.t)) else {
            return String::new();
        };
        // what these call it is the heads side by side
        let joined = matches!(self.notation, Notation::S0 | Notation::S2 | Notation::S3 | Notation::Llmc);
        if joined && name.ends_with("hook_z") {
            (axes, sizes) = (vec!["batch", "pos", "features"], vec![self.b, self.t, sizes[2] * sizes[3]]);
        }
        if axes.len() != sizes.len() {
            return format!("({})", sizes.iter().map(|n| commas(*n as u64)).collect::<Vec<_>>().join(", "));
        }
        let order = self.notation.order(name, &axes);
        // an axis of one has a letter in no notation but limpid's
        let kept = |i: &usize| self.notation == Notation::Limpid || axes[*i] != "1";
        self.shape_of(name, &order.into_iter().filter(kept).map(|i| (axes[i], sizes[i])).collect::<Vec<_>>())
    }

    /// What attention's last product gives, which may not yet be what is added to the stream.
    fn projected(&self) -> &'static str {
        let own = "blocks.0.attn.hook_out";
        if self.model.tensor(own).is_some() { own } else { "blocks.0.hook_attn_out" }
    }

    fn row(&self, name: &str) -> Row {
        [self.symbol(name), names::within(name, Some(0)).into(), self.shape(name)]
    }

    /// That of a tensor of attention with a shape of its own: of one head.
    fn row_of(&self, name: &str, shape: Shape) -> Row {
        let tensor = format!("blocks.0.attn.{name}");
        [self.symbol(&tensor), name.into(), self.shape_of(&tensor, shape)]
    }

    /// Parameters that an op reads.
    fn params(&self, op: &Op) -> Vec<&'a str> {
        let mut copy = *op;
        let own: Vec<Region> =
            copy.operands().filter(|(access, _)| *access == Access::Own).map(|(_, region)| *region).collect();
        let params = self.model.params.iter().filter(|param| own.contains(&param.region));
        params.map(|param| param.name.as_str()).collect()
    }

    /// Tensors that an op makes, but for what enters a block: it left another, and once is enough.
    fn made(&self, op: &Op) -> Vec<&'a str> {
        let made = self.model.tensors.iter().filter(|tensor| makes(op, tensor.region));
        made.map(|tensor| tensor.name.as_str()).filter(|name| !name.ends_with("hook_resid_pre")).collect()
    }

    /// Parameters that an op reads, and tensors that it makes.
    fn rows(&self, op: &Op) -> Vec<Row> {
        [self.params(op), self.made(op)].concat().into_iter().map(|name| self.row(name)).collect()
    }

    /// Ops before the blocks, of the first block, and after the blocks.
    fn ops(&self) -> [Vec<Op>; 3] {
        let mut parts = [vec![], vec![], vec![]];
        for op in self.model.ops().iter() {
            // what leaves a block is also what enters the next
            let made = self.model.tensors.iter().filter(|t| makes(op, t.region) && !t.name.ends_with("hook_resid_pre"));
            match made.into_iter().find_map(|tensor| tensor.module.block) {
                Some(0) => parts[1].push(*op),
                Some(_) => {}
                None if parts[1].is_empty() => parts[0].push(*op),
                None => parts[2].push(*op),
            }
        }
        parts
    }

    // ---- diagrams

    /// Boxes from the ids down to the probabilities.
    fn whole(&mut self) {
        let [before, _, after] = self.ops();
        let (x, w) = (0.0, 620.0);
        let ids = [self.row("input")];
        let mut y = self.node([x, 0.0, w], PLAIN, "token ids", "", &ids);
        for op in &before {
            y = self.below([x, y, w], kind(op), title(op, self.c), "", &self.rows(op));
        }
        let [inside, outside] = ["blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"].map(|name| self.row(name));
        let last = Module::block(self.c.n_layer - 1).named("hook_resid_post");
        let rows = [
            self.row("blocks.0.hook_resid_pre"),
            inside,
            outside,
            [self.symbol(&last), last.clone(), self.shape(&last)],
        ];
        let note = match self.c.norm_place {
            NormPlace::Pre => "each: norm, attention, +, norm, feed-forward network, +",
            NormPlace::Post => "each: attention, +, norm, feed-forward network, +, norm",
            NormPlace::PostAttention => "each: attention, +, norm, feed-forward network",
            NormPlace::Branch => "each: attention, norm, +, feed-forward network, norm, +",
            NormPlace::Both => "each: norm, attention, norm, +, norm, feed-forward network, norm, +",
        };
        let end = self.below([x, y, w], MIXES, &plural(self.c.n_layer, "block"), note, &rows);
        y = end;
        let top = end - 32.0 - LINE * 4.0;
        // sheets behind the box: there are several
        for i in 1..=self.c.n_layer.clamp(1, 4) - 1 {
            let d = 5.0 * i as f64;
            let (right, low) = (x + w + d, end + d);
            self.line(&[[x + w, top + d], [right, top + d], [right, low], [x + d, low], [x + d, end]], false, 0);
        }
        for op in &after {
            y = self.below([x, y, w], kind(op), title(op, self.c), "", &self.rows(op));
        }
        self.room(x + w + 20.0, y);
    }

    /// Every op of the first block; what is on the stream is wide, what reads it and is added to it stands to the
    /// right.
    fn block(&mut self) {
        let [_, ops, _] = self.ops();
        let (lane, left, wide) = (34.0, 96.0, 624.0);
        let (edge, full) = (0.0, left + wide);
        let enters = "blocks.0.hook_resid_pre";
        let row = [self.row(enters)];
        let mut y = self.node([edge, 0.0, full], STREAM, "the residual stream enters", "", &row);
        let mut stream: Vec<Region> = self.model.tensor(enters).map(|tensor| tensor.region).into_iter().collect();
        let (mut from, mut beside) = (y, false);
        for op in &ops {
            let reads = op.inputs().into_iter().flatten().any(|x| stream.contains(&x));
            let on_stream = match op {
                Op::Add { .. } => reads,
                Op::Norm { .. } => reads && self.c.norm_place.is_post(),
                _ => false,
            };
            let (top, rows) = (y + GAP, self.rows(op));
            let middle = left + wide / 2.0;
            if on_stream {
                self.arrow(&[[lane, from], [lane, top]]);
                if beside {
                    self.arrow(&[[middle, y], [middle, top]]);
                }
                y = self.node([edge, top, full], kind(op), title(op, self.c), "", &rows);
                stream.push(op.output());
                (from, beside) = (y, false);
                continue;
            }
            let way = if reads { [[lane, top + 14.0], [left, top + 14.0]] } else { [[middle, y], [middle, top]] };
            self.arrow(&way);
            y = self.node([left, top, wide], kind(op), title(op, self.c), "", &rows);
            beside = true;
        }
    }

    /// One head: queries, keys, values; scores, mask, weights; the weighted sum.
    fn head(&mut self) {
        let (t, d, c) = (self.t, self.c.d_head(), self.c.d_model);
        let (w, gap) = (270.0, 20.0);
        let at = |i: usize| i as f64 * (w + gap);
        let [tokens, model, head] = [("pos", t), ("d_model", c), ("d_head", d)];
        let whole = 3.0 * w + 2.0 * gap;
        let x = first_read(self.c);
        let x_row = [self.symbol(x), x.replace("blocks.0.", ""), self.shape_of(x, &[tokens, model])];
        let mut y = self.node([0.0, 0.0, whole], PLAIN, "what the head reads, of one sequence", "", &[x_row]);
        let (weights, rows) = (["W_Q", "W_K", "W_V"], ["hook_q", "hook_k", "hook_v"]);
        let names = ["query: what it looks for", "key: its label for others", "value: what it passes on"];
        let top = y + GAP;
        for i in 0..3 {
            self.arrow(&[[at(i) + w / 2.0, y], [at(i) + w / 2.0, top]]);
            let head = if i == 2 { self.value() } else { head };
            let made = [self.row_of(weights[i], &[model, head]), self.row_of(rows[i], &[tokens, head])];
            self.node([at(i), top, w], MAPS, names[i], "", &made);
        }
        y = top + 68.0;
        let pair = 2.0 * w + gap;
        let scale = self.computed("blocks.0.attn.hook_raw_scores");
        let mask =
            if self.c.mask == Mask::Causal { "a query sees no later key: -inf there" } else { "hides nothing here" };
        let steps = [
            (MIXES, "scores", scale.as_str(), "hook_raw_scores"),
            (PLAIN, "mask", mask, "hook_attn_scores"),
            (BENDS, "softmax of each row", "every row sums to 1", "hook_pattern"),
        ];
        let seen = [("query_pos", t), ("key_pos", t)];
        for (i, (fill, title, note, made)) in steps.into_iter().enumerate() {
            let top = y + GAP;
            for x in if i == 0 { vec![w / 2.0, w + gap + w / 2.0] } else { vec![pair / 2.0] } {
                self.arrow(&[[x, y], [x, top]]);
            }
            y = self.node([0.0, top, pair], fill, title, note, &[self.row_of(made, &seen)]);
        }
        let end = y + GAP;
        self.arrow(&[[pair / 2.0, y], [pair / 2.0, end]]);
        let values = at(2) + w / 2.0;
        self.arrow(&[[values, top + 68.0], [values, end]]);
        let z = [self.of_a_head("z"), "hook_z".into(), self.shape_of("", &[tokens, self.value()])];
        let title = format!("weights times {}", self.of_a_head("v"));
        self.node([0.0, end, whole], MIXES, &title, "each token's sum of what it looks at", &[z]);
    }

    /// All heads side by side.
    fn attention(&mut self) {
        let (c, w) = (self.c, 700.0);
        let x = first_read(c);
        let row = [self.row(x)];
        let y = self.node([0.0, 0.0, w], PLAIN, "every head reads all of it", "", &row);
        let (gap, top) = (16.0, y + GAP);
        let (t, d) = (commas(self.t as u64), c.d_value());
        let [q, k, v, weights, z] = ["q", "k", "v", "pattern", "z"].map(|hook| self.of_a_head(hook));
        let lines = [format!("{q}, {k}, {v}"), self.computed("blocks.0.attn.hook_unscaled_scores"), weights, z];
        let qk = c.d_head();
        let qkv = if qk == d { format!("({t}, {d})") } else { format!("({t}, {qk}), ({t}, {qk}), ({t}, {d})") };
        let shapes = [qkv, format!("({t}, {t})"), format!("({t}, {t})"), format!("({t}, {d})")];
        // as many heads as there is room for
        let needs = lines.iter().zip(&shapes).map(|(line, shape)| text_width(line, 12.0) + text_width(shape, SMALL));
        let needs = needs.fold(0.0, f64::max) + 32.0 + gap;
        let shown = c.n_head.min(4).min(((w + gap) / needs).floor().max(1.0) as usize);
        let wide = (w - gap * (shown as f64 - 1.0)) / shown as f64;
        let high = 30.0 + LINE * 4.0;
        for i in 0..shown {
            let left = i as f64 * (wide + gap);
            let last = i + 1 == shown;
            let number = if last { c.n_head - 1 } else { i };
            self.arrow(&[[left + wide / 2.0, y], [left + wide / 2.0, top]]);
            self.rect([left, top, wide, high], MIXES);
            self.bold([left + 12.0, top + 19.0], Side::Start, format!("head {number}"));
            if last && c.n_head > shown {
                self.soft([left - gap / 2.0, top + high / 2.0], Side::Middle, "…");
            }
            for (k, (line, shape)) in lines.iter().zip(&shapes).enumerate() {
                let at = top + 40.0 + LINE * k as f64;
                self.say([left + 12.0, at], Side::Start, line);
                self.mono([left + wide - 12.0, at], Side::End, shape);
            }
            self.arrow(&[[left + wide / 2.0, top + high], [left + wide / 2.0, top + high + GAP]]);
        }
        let z = [self.row("blocks.0.attn.hook_z")];
        let heads = format!("{} heads x {d} = {} columns", c.n_head, c.heads().output_cols());
        let mut y = self.node([0.0, top + high + GAP, w], PLAIN, "heads side by side", &heads, &z);
        let mut rows = vec![self.row("blocks.0.attn.out.weight")];
        if self.model.param("blocks.0.attn.out.bias").is_some() {
            rows.push(self.row("blocks.0.attn.out.bias"));
        }
        rows.push(self.row(self.projected()));
        y = self.below([0.0, y, w], MAPS, "output projection", "mixes the heads", &rows);
        let kv = c.heads().n_kv_head;
        if kv != c.n_head {
            let text = format!("{} query heads share {kv} heads of keys and values", c.n_head);
            self.soft([0.0, y + LINE], Side::Start, text);
        }
    }

    /// A matrix as a rectangle in proportion, its sizes at its sides.
    fn matrix(&mut self, [x, y]: [f64; 2], [rows, cols]: Sizes, fill: Fill, name: &str) -> f64 {
        let [w, h] = [cols.1, rows.1].map(side);
        let [above, text] = [cols, rows].map(|(letter, n)| format!("{letter} {}", commas(n as u64)));
        let left = text_width(&text, SMALL) + 8.0;
        self.soft([x - 6.0 + left, y + 4.0], Side::End, text);
        // words may be wider than the rectangle that they are of
        let full = w.max(text_width(&above, SMALL)).max(text_width(name, SMALL));
        let middle = x + left + full / 2.0;
        self.soft([middle, y - h / 2.0 - 7.0], Side::Middle, above);
        self.rect([middle - w / 2.0, y - h / 2.0, w, h], fill);
        let below = if text_width(name, SMALL) > w - 4.0 { h / 2.0 + 12.0 } else { 0.0 };
        self.mono([middle, y + 4.0 + below], Side::Middle, name);
        x + left + full
    }

    /// A product: matrices, signs, what comes out.
    fn product(&mut self, y: f64, words: &str, parts: &[(Sizes, Fill, &str)]) -> f64 {
        let tall = parts.iter().map(|([rows, _], ..)| side(rows.1)).fold(0.0, f64::max);
        self.bold([0.0, y], Side::Start, words);
        let middle = y + 34.0 + tall / 2.0;
        let mut x = 0.0;
        for (i, (sizes, fill, name)) in parts.iter().enumerate() {
            if i > 0 {
                let sign = if i + 1 == parts.len() { "=" } else { "·" };
                self.put(Text { side: Side::Middle, ..Text::new([x + 18.0, middle + 5.0], 16.0, sign) });
                x += 36.0;
            }
            x = self.matrix([x, middle], *sizes, *fill, name);
        }
        middle + tall / 2.0 + 40.0
    }

    fn products(&mut self) {
        let c = self.c;
        let heads = c.n_head;
        let axis = |axis, n: usize| (self.notation.letter(axis), n);
        let (t, m, d) = (axis("pos", self.t), axis("d_model", c.d_model), axis("d_head", c.d_head()));
        let of_value = axis(names::value_axis(c), c.d_value());
        let [both, values] = [d, of_value].map(|(letter, _)| format!("{} {letter}", self.notation.letter("head")));
        let (all, joined) = ((both.as_str(), heads * d.1), (values.as_str(), heads * of_value.1));
        let [x, out, w_q, z] =
            [first_read(c), self.projected(), "blocks.0.attn.W_Q", "blocks.0.attn.hook_z"].map(|name| self.call(name));
        let [q, k, v, weights, context] = ["q", "k", "v", "pattern", "z"].map(|hook| self.of_a_head(hook));
        let scores = match self.symbol("blocks.0.attn.hook_unscaled_scores") {
            symbol if symbol.is_empty() => "scores".into(),
            symbol => symbol,
        };
        let (k, w_o) = (format!("{}ᵀ", names::factor(&k)), self.factor("blocks.0.attn.out.weight"));
        let mut y = 14.0;
        let words = "queries of one sequence; keys and values likewise";
        y = self.product(y, words, &[([t, m], PLAIN, &x), ([m, all], MAPS, &w_q), ([t, all], MIXES, &q)]);
        let split = format!("cut into {heads} heads of {} columns; then for each head", d.1);
        y = self.product(y, &split, &[([t, d], MIXES, &q), ([d, t], MIXES, &k), ([t, t], BENDS, &scores)]);
        let words = "scaled, masked, softmax of each row; then for each head";
        let parts = [([t, t], BENDS, &*weights), ([t, of_value], MIXES, &*v), ([t, of_value], MIXES, &*context)];
        y = self.product(y, words, &parts);
        let join = format!("the {heads} heads side by side; then");
        self.product(y, &join, &[([t, joined], MIXES, &z), ([joined, m], MAPS, &w_o), ([t, m], PLAIN, &out)]);
    }

    /// Text, batch, model, loss, gradients, update, and again.
    fn training(&mut self) {
        let (w, gap, high) = (230.0, 50.0, 92.0);
        let at = |i: usize| -> [f64; 2] {
            let place = [[0, 0], [1, 0], [2, 0], [2, 1], [1, 1], [0, 1]][i];
            [f64::from(place[0]) * (w + gap), f64::from(place[1]) * (high + 64.0)]
        };
        let n = commas(self.model.parameter_count() as u64);
        let [input, logits] = ["input", "logits"].map(|name| self.shape(name));
        let stream = self.shape("blocks.0.hook_resid_pre");
        let boxes: [(Fill, &str, [String; 2]); 6] = [
            (PLAIN, "1  text to tokens", ["windows of the text, as ids".into(), input.clone()]),
            (STREAM, "2  vectors", ["token + position".into(), stream]),
            (MIXES, "3  the model predicts", ["scores of each next token".into(), logits]),
            (BENDS, "4  the loss", ["-ln p of the true next token, mean".into(), "one number".into()]),
            (MAPS, "5  gradients", ["how the loss changes with each".into(), format!("{n} numbers")]),
            (EVENS, "6  the update", ["each parameter a small step down".into(), format!("{n} parameters")]),
        ];
        for (i, (fill, title, [words, shape])) in boxes.into_iter().enumerate() {
            let [x, y] = at(i);
            self.rect([x, y, w, high], fill);
            self.bold([x + 12.0, y + 22.0], Side::Start, title);
            self.say([x + 12.0, y + 46.0], Side::Start, words);
            let shown = if text_width(&shape, SMALL) > w - 20.0 { sizes_of(&shape) } else { &shape };
            self.mono([x + 12.0, y + 70.0], Side::Start, shown);
        }
        let middle = high / 2.0;
        for i in 0..2 {
            let [x, y] = at(i);
            self.arrow(&[[x + w, y + middle], [x + w + gap, y + middle]]);
            let [x, y] = at(i + 3);
            self.arrow(&[[x, y + middle], [x - gap, y + middle]]);
        }
        let ([x, y], [_, below]) = (at(2), at(3));
        self.arrow(&[[x + w / 2.0, y + high], [x + w / 2.0, below]]);
        self.soft([x + w / 2.0 - 8.0, below - 26.0], Side::End, "compared with the text");
        let ([x, y], [_, above]) = (at(5), at(0));
        self.arrow(&[[x + w / 2.0, y], [x + w / 2.0, above + high]]);
        self.soft([x + w / 2.0 + 8.0, y - 26.0], Side::Start, "again with the next windows");
    }

    /// What the notation says of an op's tensors: those that it has a word for; a norm's mean, which no op keeps by
    /// itself, is one.
    fn written(&self, op: &Op) -> Vec<String> {
        let made = self.made(op).into_iter().flat_map(|name| {
            let mean = name.ends_with("hook_scale").then(|| name.replace("hook_scale", "hook_mean"));
            mean.into_iter().chain([name.to_string()])
        });
        let (named, other): (Vec<String>, Vec<String>) = made.partition(|name| !self.symbol(name).is_empty());
        if named.is_empty() { other } else { named }
    }

    /// Parameters, layer, activations: a line for each op.
    fn layers(&mut self) {
        let [before, block, after] = self.ops();
        let (mid, gap) = (170.0, 34.0);
        // llm.c keeps the reciprocal of what a norm divides by
        let call = |drawing: &Drawing, name: &str| drawing.call(name).trim_start_matches("1/").to_string();
        let sizes = |drawing: &Drawing, name: &str| sizes_of(&drawing.shape(name)).to_string();
        // both columns as wide as the widest line needs
        let all = [before.as_slice(), block.as_slice(), after.as_slice()].concat();
        let every = all.iter().flat_map(|op| self.params(op).into_iter().map(String::from).chain(self.written(op)));
        let needs = every.map(|name| text_width(&(call(self, &name) + &sizes(self, &name)), SMALL) + 34.0);
        let w = needs.fold(236.0, f64::max);
        let mut y = 20.0;
        let heads = ["parameters", "layer", "activations"];
        for (x, head) in [0.0, w + gap, w + mid + 2.0 * gap].into_iter().zip(heads) {
            self.bold([x, 0.0], Side::Start, head);
        }
        for (part, ops) in [before, block, after].into_iter().enumerate() {
            let top = y;
            if part == 1 {
                y += 30.0;
            }
            for op in &ops {
                let params: Vec<String> = self.params(op).into_iter().map(String::from).collect();
                let made = self.written(op);
                let lines = params.len().max(made.len()).max(1);
                let high = 12.0 + LINE * lines as f64;
                for (x, list, fill) in [(0.0, &params, MAPS), (w + mid + 2.0 * gap, &made, STREAM)] {
                    if list.is_empty() {
                        continue;
                    }
                    self.rect([x, y, w, high], fill);
                    for (i, name) in list.iter().enumerate() {
                        let at = y + 19.0 + LINE * i as f64;
                        self.mono([x + 10.0, at], Side::Start, call(self, name));
                        self.mono([x + w - 10.0, at], Side::End, sizes(self, name));
                    }
                }
                self.rect([w + gap, y, mid, high], kind(op));
                self.bold([w + gap + mid / 2.0, y + high / 2.0 + 4.0], Side::Middle, title(op, self.c));
                let middle = y + high / 2.0;
                if !params.is_empty() {
                    self.arrow(&[[w, middle], [w + gap, middle]]);
                }
                self.arrow(&[[w + gap + mid, middle], [w + mid + 2.0 * gap, middle]]);
                y += high + 10.0;
            }
            if part == 1 {
                let right = 2.0 * w + mid + 2.0 * gap;
                let text = format!("the first of {}; each has its own", plural(self.c.n_layer, "block"));
                self.soft([0.0, top + 20.0], Side::Start, text);
                let (left, right, top) = (-10.0, right + 10.0, top + 4.0);
                self.line(&[[left, top], [right, top], [right, y], [left, y], [left, top]], false, 1);
                y += 14.0;
            }
        }
    }

    /// Steps of attention as cards of C rows and T columns, several where there are more axes.
    fn sketch(&mut self) {
        let c = self.c;
        let wide = c.heads().cols();
        let (batch, heads) = (("batch", self.b), ("head", c.n_head));
        let [tokens, model, head] = [("pos", self.t), ("features", c.heads().output_cols()), ("d_head", c.d_head())];
        let (from, to) = (("query_pos", self.t), ("key_pos", self.t));
        let [qkv, scores, weights, z] = ["hook_qkv", "hook_attn_scores", "hook_pattern", "hook_z"]
            .map(|hook| self.call(&format!("blocks.0.attn.{hook}")));
        let products = format!("{weights} · value");
        let channels = commas(model.1 as u64);
        let weighted = format!("a weight times a value vector, for each two tokens: {channels} cards, one a channel");
        // what it is called, in words, its shape with the card's rows and columns last
        let values = ("head", c.heads().n_kv_head);
        let steps: [(&str, &str, &str, Shape, Fill); 7] = [
            ("qkv", &qkv, "queries, keys and values, above each other", &[batch, ("features", wide), tokens], MAPS),
            ("q", "query of one head", "its rows of those of all heads", &[batch, heads, head, tokens], MIXES),
            ("attn_scores", &scores, "each query with each key, for each head", &[batch, heads, from, to], BENDS),
            ("pattern", &weights, "softmax: the weights of each query sum to 1", &[batch, heads, from, to], BENDS),
            ("v", "value of one head", "a vector for each token", &[batch, values, self.value(), tokens], MIXES),
            ("z", &products, &weighted, &[batch, model, from, to], MIXES),
            ("z", &z, "each row summed: heads above each other again", &[batch, model, tokens], STREAM),
        ];
        let mut y = 16.0;
        let last = steps.len() - 1;
        for (i, (hook, name, words, shape, fill)) in steps.into_iter().enumerate() {
            let tensor = format!("blocks.0.attn.hook_{hook}");
            let [others @ .., high, across] = shape else { unreachable!("a card has rows and columns") };
            let [w, h] = [across.1, high.1].map(side);
            let (x, cards) = (130.0, others.iter().map(|(_, n)| n).product::<usize>().clamp(1, 4) - 1);
            y += 6.0 * cards as f64;
            for k in (0..=cards).rev() {
                let d = 6.0 * k as f64;
                self.rect([x + d, y + 18.0 - d, w, h], fill);
            }
            let side_text = |(axis, n): &(&'static str, usize)| {
                format!("{} {}", self.letters(&tensor, &[*axis]), commas(*n as u64))
            };
            let (below, left) = (side_text(across), side_text(high));
            self.soft([x + w / 2.0, y + h + 33.0], Side::Middle, below);
            self.soft([x - 8.0, y + 18.0 + h / 2.0 + 4.0], Side::End, left);
            let text = x + 220.0;
            self.bold([text, y + 18.0 + h / 2.0 - 8.0], Side::Start, name);
            self.say([text, y + 18.0 + h / 2.0 + 10.0], Side::Start, words);
            self.mono([text, y + 18.0 + h / 2.0 + 28.0], Side::Start, self.shape_of(&tensor, shape));
            let next = y + h.max(48.0) + 62.0;
            if i < last {
                self.arrow(&[[x + w / 2.0, y + h + 40.0], [x + w / 2.0, next + 14.0]]);
            }
            y = next;
        }
        let [lies, drawn] = [[batch, tokens, model], [batch, model, tokens]]
            .map(|shape| self.letters("blocks.0.attn.hook_z", &shape.map(|(axis, _)| axis)));
        let text =
            format!("Only the drawing is ({drawn}): in memory the numbers of a token lie beside each other, ({lies}).");
        self.say([0.0, y + 4.0], Side::Start, text);
    }

    /// Words, ids and positions of a batch, and the tables that they are looked up in.
    fn input(&mut self, trace: &Trace, labels: &Labels) {
        let (b, t) = (self.b.min(4), self.t.min(8));
        let word = |row: usize, at: usize| {
            let own = labels.tokens.get(row).and_then(|words| words.get(at)).cloned();
            let id = trace.batch().tokens[row * self.t + at];
            [own.unwrap_or_else(|| label(&id.to_string())), format!("id {id}")].map(|text| cut(&text, 14))
        };
        let words: Vec<Vec<[String; 2]>> = (0..b).map(|row| (0..t).map(|at| word(row, at)).collect()).collect();
        let longest = words.iter().flatten().map(|[word, _]| text_width(word, 12.0)).fold(56.0, f64::max);
        let (w, h, left) = (longest + 18.0, 46.0, 96.0);
        let rest = |shown: usize, all: usize, what: &str| {
            if all > shown { format!(", the first {shown} of {} {what}", commas(all as u64)) } else { String::new() }
        };
        let several = if self.b == 1 { "sequence" } else { "sequences" };
        let first = [rest(b, self.b, "sequences"), rest(t, self.t, "tokens")].concat();
        let heading = format!("{} {several} of {} tokens, {}{first}", self.b, self.t, self.shape("input"));
        self.bold([0.0, 4.0], Side::Start, heading);
        let mut y = 22.0;
        for at in 0..t {
            self.soft([left + (at as f64 + 0.5) * w, y + 12.0], Side::Middle, format!("position {at}"));
        }
        y += 20.0;
        for (row, words) in words.iter().enumerate() {
            self.soft([left - 10.0, y + h / 2.0 + 4.0], Side::End, format!("sequence {row}"));
            for (at, [word, id]) in words.iter().enumerate() {
                let x = left + at as f64 * w;
                self.rect([x, y, w - 4.0, h], STREAM);
                self.say([x + (w - 4.0) / 2.0, y + 19.0], Side::Middle, word.clone());
                self.mono([x + (w - 4.0) / 2.0, y + 36.0], Side::Middle, id.clone());
            }
            y += h + 6.0;
        }
        let right = (left + t as f64 * w).max(560.0);
        let tokens = ["embed.weight", "hook_embed"].map(|name| self.row(name));
        y = self.below([0.0, y, right], MAPS, "each id is a row of the token table", "", &tokens);
        if self.model.tensor("hook_pos_embed").is_some() {
            let learned = self.model.param("pos_embed.weight").map(|_| self.row("pos_embed.weight"));
            let rows: Vec<Row> = learned.into_iter().chain([self.row("hook_pos_embed")]).collect();
            let title = "each position its own row, the same in every sequence";
            y = self.below([0.0, y, right], EVENS, title, "+", &rows);
        }
        let sum = [self.row("blocks.0.hook_resid_pre")];
        self.below([0.0, y, right], STREAM, "what the first block reads", "=", &sum);
    }

    /// For each of the first tokens the likeliest next ones, the true one, and its -ln p.
    fn loss(&mut self, trace: &Trace, labels: &Labels) -> Result<(), TraceError> {
        const SHOWN: usize = 6;
        const LIKELIEST: usize = 5;
        let (logits, probs, losses) = (trace.get("logits")?, trace.get("probs")?, trace.get("losses")?);
        let (v, targets) = (self.c.vocab_size, &trace.batch().targets);
        let counted: Vec<usize> =
            (0..losses.values.len()).filter(|n| targets.get(*n).is_some_and(|target| *target != IGNORE)).collect();
        if counted.is_empty() {
            let what = "the diagram `loss` needs a next token: give at least two tokens".into();
            return Err(TraceError::Expression { what });
        }
        let word = |id: usize| labels.vocabulary.get(id).cloned().unwrap_or_else(|| format!("id {id}"));
        let columns = [0.0, 130.0, 270.0, 360.0, 450.0, 620.0];
        let heads = ["after", "likeliest and true", "logit", "p = softmax", "", "-ln p of the true"];
        let mut y = 6.0;
        for (x, head) in columns.into_iter().zip(heads) {
            self.bold([x, y], Side::Start, head);
        }
        y += 14.0;
        for n in counted.iter().copied().take(SHOWN) {
            let (p, z) = (&probs.values[n * v..][..v], &logits.values[n * v..][..v]);
            let target = targets[n] as usize;
            let mut shown = greatest(p, LIKELIEST);
            if !shown.contains(&target) {
                shown.pop();
                shown.push(target);
            }
            let high = 14.0 + LINE * shown.len() as f64;
            self.rect([-10.0, y, 770.0, high], PLAIN);
            let own = trace.batch().tokens[n] as usize;
            self.say([columns[0] + 4.0, y + high / 2.0 + 4.0], Side::Start, cut(&word(own), 16));
            for (i, id) in shown.iter().enumerate() {
                let at = y + 20.0 + LINE * i as f64;
                let is_true = *id == target;
                let text = cut(&word(*id), 16);
                if is_true {
                    self.bold([columns[1], at], Side::Start, text)
                } else {
                    self.say([columns[1], at], Side::Start, text)
                }
                self.mono([columns[2], at], Side::Start, format!("{:.3}", z[*id]));
                self.mono([columns[3], at], Side::Start, format!("{:.4}", p[*id]));
                let long = (f64::from(p[*id]) * 150.0).max(0.5);
                let fill = Fill::Series(usize::from(is_true));
                self.marks.push(Mark::rect([columns[4], at - 9.0, long, 10.0], fill));
            }
            let text = format!("-ln {:.4} = {:.4}", p[target], losses.values[n]);
            self.mono([columns[5], y + high / 2.0 + 4.0], Side::Start, text);
            y += high + 8.0;
        }
        let sum: f64 = counted.iter().map(|n| f64::from(losses.values[*n])).sum();
        let mean = sum / counted.len() as f64;
        let (n, perplexity) = (counted.len(), mean.exp());
        let all = if n > SHOWN { format!(" (the first {SHOWN} are above)") } else { String::new() };
        let means = format!("{sum:.4} / {n} = {mean:.4}; perplexity e^{mean:.4} = {perplexity:.3}");
        self.bold([0.0, y + 18.0], Side::Start, format!("loss = mean over {n} tokens{all} = {means}"));
        let (tokens, even) = (commas(v as u64), (v as f64).ln());
        let text = format!("Every token equally likely would be ln V = ln {tokens} = {even:.4}.");
        self.say([0.0, y + 40.0], Side::Start, text);
        Ok(())
    }
}

/// A shape without its letters: `(1, 4, 6)` of `(B,T,C) = (1, 4, 6)`.
fn sizes_of(shape: &str) -> &str {
    shape.split_once(" = ").map_or(shape, |(_, sizes)| sizes)
}

/// A side of a rectangle for so many rows or columns.
fn side(n: usize) -> f64 {
    (4.5 * (n as f64).sqrt()).clamp(36.0, 160.0)
}

/// The colour of an op's box.
fn kind(op: &Op) -> Fill {
    match op {
        Op::Embed { .. } | Op::Linear { .. } | Op::Classify { .. } => MAPS,
        Op::Norm { .. } | Op::QkNorm { .. } => EVENS,
        Op::Attend { .. } | Op::Rotate { .. } => MIXES,
        Op::Activate { .. } | Op::Multiply { .. } => BENDS,
        Op::Add { .. } => STREAM,
        Op::Dropout { .. } | Op::Gather { .. } | Op::Scale { .. } => PLAIN,
    }
}

/// An op in words.
fn title(op: &Op, c: &Config) -> &'static str {
    match op {
        Op::Embed { .. } => "embedding",
        Op::Norm { kind: NormKind::Rms, .. } => "RMS norm",
        Op::Norm { .. } => "layer norm",
        Op::QkNorm { .. } => "norm of queries and keys",
        Op::Rotate { .. } => "rotate by position",
        Op::Attend { scoring: Scoring { mask: Mask::Causal, window: 1.., .. }, .. } => "causal attention in a window",
        Op::Attend { scoring: Scoring { mask: Mask::Causal, .. }, .. } => "causal attention",
        Op::Attend { .. } => "attention",
        Op::Activate { .. } => c.activation.name(),
        Op::Add { .. } => "+",
        Op::Multiply { .. } => "times",
        Op::Classify { .. } => "head, softmax, loss",
        Op::Linear { .. } | Op::Scale { .. } | Op::Dropout { .. } | Op::Gather { .. } => op.name(),
    }
}

/// What attention of the first block reads.
fn first_read(c: &Config) -> &'static str {
    match c.norm_place {
        NormPlace::Pre | NormPlace::Both => "blocks.0.ln1.hook_out",
        NormPlace::Post | NormPlace::PostAttention | NormPlace::Branch => "blocks.0.hook_resid_pre",
    }
}

/// A model in a line.
fn variant(c: &Config) -> String {
    let kind = if c.mask == Mask::Causal { "decoder-only" } else { "encoder" };
    let place = match c.norm_place {
        NormPlace::Pre => "norms before the sub-layers",
        NormPlace::Post => "norms after the sums",
        NormPlace::PostAttention => "norms after attention's sums",
        NormPlace::Branch => "norms after the sub-layers",
        NormPlace::Both => "norms before and after the sub-layers",
    };
    format!("{kind}, {place}, positions {}", c.positions)
}
