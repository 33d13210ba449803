//! Four palettes of 256 colours, one table for the terminal, files and pages. The lightness of a sequential one rises or falls with
//! every entry and that of the diverging one falls from its middle, so that order survives print in grey and colour blindness.
//!
//! `viridis` and `cividis` are matplotlib's (CC0), entries moved by at most 2 of 255 where rounding to bytes had broken the order.

/// A palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// Dark violet, green in the middle, bright yellow.
    Viridis,
    /// Dark blue to yellow, the same for eyes that tell red from green and for those that do not.
    Cividis,
    /// From paper to dark: the darker, the greater.
    Ink,
    /// Blue below nothing, white, orange above.
    Diverging,
}

impl Palette {
    /// All four.
    pub const ALL: [Palette; 4] = [Palette::Viridis, Palette::Cividis, Palette::Ink, Palette::Diverging];

    /// Its name, as a flag has it.
    pub fn name(self) -> &'static str {
        match self {
            Palette::Viridis => "viridis",
            Palette::Cividis => "cividis",
            Palette::Ink => "ink",
            Palette::Diverging => "diverging",
        }
    }

    /// The palette of that name.
    pub fn named(name: &str) -> Option<Palette> {
        Palette::ALL.into_iter().find(|palette| palette.name() == name)
    }

    /// All its colours: 256 times six hexadecimal digits, red, green and blue.
    pub fn hex(self) -> &'static str {
        match self {
            Palette::Viridis => VIRIDIS,
            Palette::Cividis => CIVIDIS,
            Palette::Ink => INK,
            Palette::Diverging => DIVERGING,
        }
    }

    /// Red, green and blue of an entry.
    pub fn colour(self, entry: u8) -> [u8; 3] {
        let all = self.hex().as_bytes();
        let digit = |at: usize| match all[at] {
            d @ b'0'..=b'9' => d - b'0',
            d => d - b'a' + 10,
        };
        [0, 2, 4].map(|at| {
            let at = usize::from(entry) * 6 + at;
            digit(at) * 16 + digit(at + 1)
        })
    }
}

/// The entry for a value between `low` and `high`; values outside have that of the nearer end.
pub fn entry(value: f64, (low, high): (f64, f64)) -> u8 {
    let share = if high > low { (value - low) / (high - low) } else { 0.0 };
    (share.clamp(0.0, 1.0) * 255.0).round() as u8
}

/// How light a colour looks, from 0 to 100 (L* of CIELAB).
pub fn lightness(rgb: [u8; 3]) -> f64 {
    let linear = rgb.map(|v| match f64::from(v) / 255.0 {
        v if v <= 0.04045 => v / 12.92,
        v => libm::pow((v + 0.055) / 1.055, 2.4),
    });
    let y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    if y > 216.0 / 24389.0 { 116.0 * libm::cbrt(y) - 16.0 } else { 24389.0 / 27.0 * y }
}

/// The nearest of a terminal's 256 colours: of its cube, or of its greys.
pub fn terminal(rgb: [u8; 3]) -> u8 {
    const CUBE: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let distance =
        |other: [u8; 3]| -> i32 { rgb.iter().zip(other).map(|(a, b)| (i32::from(*a) - i32::from(b)).pow(2)).sum() };
    let cube = |i: u8| [CUBE[usize::from(i / 36)], CUBE[usize::from(i / 6 % 6)], CUBE[usize::from(i % 6)]];
    let all = (0..216).map(|i| (16 + i, cube(i))).chain((0..24).map(|i| (232 + i, [8 + 10 * i; 3])));
    all.min_by_key(|(_, other)| distance(*other)).map_or(16, |(code, _)| code)
}

#[rustfmt::skip]
const VIRIDIS: &str = "\
    44015444025645045745055946075a46085c460a5d460b5e470d60470e6147106347116447136548146748166848176948186a481a6c481b6d\
    481c6e481d6f481f70482071482173482374482475482576482677482878482979472a7a472c7a472d7b472e7c472f7d46307e46327e46337f\
    463480453581453781453882443983443a83443b84433d84433e85423f854240864241864142874144874045884046883f47883f48893e4989\
    3e4a893e4c8a3d4d8a3d4e8a3c4f8a3c508b3b518b3b528b3a538b3a548c39558c39568c38588c38598c375a8c375b8d365c8d365d8d355e8d\
    355f8d34608d34618d33628d33638d32648e32658e31668e31678e31688e30698e306a8e2f6b8e2f6c8e2e6d8e2e6e8e2e6f8e2d708e2d718e\
    2c728e2c738e2c748e2b758e2b758f2a768e2a778e2a788e29798e297a8e297b8e287c8e287d8e277e8e277f8e27808e26818e26828e26838e\
    25848e25858e25868e24878e24888e23898e238a8e238b8d238b8e228c8d228d8d218e8d218f8d21908d21918c20928c20938c20948c1f958c\
    1f968b1f978b1f988b1f998b1f9a8a1f9a8b1e9b8a1e9c891e9d891f9e891f9f881fa0881fa1881fa2871fa38720a48620a58621a68521a785\
    22a88522a98424a98424aa8325ab8225ac8226ad8127ae8128af8029b07f2bb07f2cb17e2db27d2eb37c2fb47c31b57b32b67a34b67935b779\
    37b87838b9773aba763bbb753dbc743fbc7340bd7242be7144bf7046c06f48c16e4ac16d4cc26c4ec36b50c46a52c56954c56856c66758c765\
    5ac8645cc8635ec96260ca6063cb5f65cb5e67cc5c69cd5b6ccd5a6ece5870cf5773d05675d05477d1537ad1517cd2507fd34e81d34d84d44b\
    86d54989d5488bd6468ed64590d74393d74195d84098d83e9bd93c9dd93ba0da39a2da37a5db36a8db34aadc32addc30b0dd2fb2dd2db5de2b\
    b8de29bade28bddf26c0df25c2df23c5e021c8e020cae11fcde11dd0e11cd2e21bd5e21ad8e219dae319dde318dfe318e2e418e5e419e7e419\
    eae51aece51befe51cf1e51df4e61ef6e620f8e621fbe723fde725";

#[rustfmt::skip]
const CIVIDIS: &str = "\
    00224e00234f00245100255300255400265600275800285900285b00295d002a5f002a61002b62002c64002c66002d68002e6a002e6c002f6d\
    00306f0030700031700031710132710533710833710c34700f357012357014367016377018386f1a386f1c396f1e3a6f203a6f213b6e233c6e\
    243c6e263d6e273e6e293f6e2a3f6e2b406d2d416d2e416d2f426d31436d32436d33446d34456c35456c36466c38476c39486c3a486c3b496c\
    3c4a6c3d4a6c3e4b6c3f4c6c404c6c414d6c424e6c434e6c444f6c45506c46516c47516c48526c49536c4a536c4b546c4c556c4d556c4e566c\
    4f576c50576c51586d52596d535a6d545a6d555b6d555c6d565c6d575d6d585e6d595e6e5a5f6e5b606e5c616e5d616e5e626e5e636f5f636f\
    60646f61656f62656f636670646770656870666870666970676a71686a71696b716a6c716b6d726c6d726c6e726d6f726e6f736f7073707173\
    7172747272747273747374757474757575757676767777767777777878777979777a7a787b7a787c7b787d7c787e7c787e7d787f7e78807f78\
    817f788280798381798482798582798683798784788885788985788a86788b87788c88788d88788e89788f8a78908b78918b78928c78928d78\
    938e78948e77958f779690779791779892779992779a93769b94769c95769d95769e96769f9775a09875a19975a29975a39a74a49b74a59c74\
    a69c74a79d73a89e73a99f73aaa073aba072aca172ada272aea371afa471b0a571b1a570b3a670b4a76fb5a86fb6a96fb7a96eb8aa6eb9ab6d\
    baac6dbbad6dbcae6cbdae6cbeaf6bbfb06bc0b16ac1b26ac2b369c3b369c4b468c5b568c6b667c7b767c8b866c9b965cbb965ccba64cdbb63\
    cebc63cfbd62d0be62d1bf61d2c060d3c05fd4c15fd5c25ed6c35dd7c45cd9c55cdac65bdbc75adcc859ddc858dec958dfca57e0cb56e1cc55\
    e2cd54e4ce53e5cf52e6d051e7d150e8d24fe9d34eead34cebd44bedd54aeed649efd748f0d846f1d945f2da44f3db42f5dc41f6dd3ff7de3e\
    f8df3cf9e03afbe138fce236fde334fee434fee535fee636fee838";

#[rustfmt::skip]
const INK: &str = "\
    eeeff1edeef1eceef0ebedefeaeceee9ebede8eaede7e9ece6e8ebe5e7eae4e6e9e3e6e8e2e5e8e1e4e7e0e3e6dfe2e5dee1e4dde0e4dcdfe3\
    dbdee2dadde1d9dde0d8dce0d7dbdfd7daded6d9ddd5d8dcd4d7dcd3d6dbd2d6dad1d5d9d0d4d9cfd3d8ced2d7cdd1d6ccd0d5cbcfd5caced4\
    c9ced3c8cdd2c7ccd1c6cbd1c5cad0c5c9cfc4c8cec3c7cdc2c7cdc1c6ccc0c5cbbfc4cabec3cabdc2c9bcc1c8bbc0c7bac0c6b9bfc6b8bec5\
    b8bdc4b7bcc3b6bbc3b5bac2b4bac1b3b9c0b2b8bfb1b7bfb0b6beafb5bdaeb4bcadb4bcadb3bbacb2baabb1b9aab0b8a9afb8a8aeb7a7aeb6\
    a6adb5a5acb5a4abb4a3aab3a3a9b2a2a8b2a1a8b1a0a7b09fa6af9ea5ae9da4ae9ca3ad9ba3ac9aa2ab9aa1ab99a0aa989fa9979ea8969ea8\
    959da7949ca6939ba5929aa59299a49199a39098a28f97a28e96a18d95a08c949f8b949f8b939e8a929d89919c88909c878f9b868f9a858e99\
    848d99848c98838b97828a96818a968089957f88947e87937e86937d86927c85917b84907a839079828f78828e78818d77808d767f8c757e8b\
    747d8a737c89737c88727b88717a877079866f78856e77846d77846d76836c75826b74816a738069737f68727f68717e67707d666f7c656e7b\
    646e7b646d7a636c79626b78616a77606a775f69765f68755e67745d66735c65735b65725b64715a637059626f58616f57616e57606d565f6c\
    555e6b545d6b535d6a535c69525b68515a67505a674f59664f58654e57644d56644c56634b55624b54614a536049526048525f47515e47505d\
    464f5d454f5c444e5b444d5a434c59424c59414b58404a574049563f49563e48553d47543d46533c45533b45523a44513a435039425038424f\
    37414e37404d363f4d353f4c343e4b343d4a333d4a323c49313b48313a47303a472f39462e38452e37452d37442c36432b35422b34422a3441\
    29334028324028323f27313e26303d252f3d252f3c242e3b232d3b232d3a222c39212b38202b38202a371f29361e29351e28351d27341c2633\
    1b26331b25321a243119243119233018222f17222e16212e16202d";

#[rustfmt::skip]
const DIVERGING: &str = "\
    0e5997115a98135c99155d9a175e9b185f9c1a609d1c619e1d629f1f64a02165a12266a22467a32568a42769a5286aa6296ca72b6da82c6ea9\
    2e6faa2f70ab3071ac3273ac3374ad3475ae3676af3777b03878b13a7ab23b7bb33c7cb43d7db53f7eb64080b74181b84382b94483ba4584bb\
    4686bc4887bd4988be4a89be4c8abf4d8bc04e8dc14f8ec2518fc35290c45391c55493c65694c75795c85896c95a98ca5b99cb5c9acc5d9bcd\
    5f9cce609ece619fcf63a0d064a1d165a2d266a4d368a5d469a6d56aa7d66ca9d76daad86eabd970acda72adda75afdb77b0db7ab1db7cb2dc\
    7fb4dc81b5dd84b6dd86b7de88b8de8bbadf8dbbdf8fbcdf92bde094bee096c0e199c1e19bc2e29dc3e29fc5e3a2c6e3a4c7e3a6c8e4a8cae4\
    abcbe5adcce5afcde6b1cee6b4d0e7b6d1e7b8d2e8bad3e8bcd5e8bfd6e9c1d7e9c3d8eac5daeac7dbebcadcebccddeccedeecd0e0edd2e1ed\
    d4e2edd7e3eed9e5eedbe6efdde7efdfe8f0e2eaf0e4ebf1e6ecf1e8edf2eaeff2ecf0f2eff1f3f1f2f3f4f2f0f3f0edf3efeaf3ede6f3ece3\
    f2eae0f2e8ddf2e7daf2e5d7f1e4d4f1e2d1f1e1cef0dfcbf0ddc8f0dcc5f0dac2efd9bfefd7bcefd6b9efd4b6eed2b3eed1b0eecfadedceaa\
    edcca7edcaa5ecc9a2ecc79fecc59cecc499ebc296ebc193ebbf91eabd8eeabc8beaba88e9b885e9b783e9b580e8b37de8b27ae7b077e7af75\
    e7ad72e6ab6fe6aa6de6a86ae5a667e5a464e4a362e4a15fe49f5ce39e5ae39c57e29a54e29952e1974fe1954ce0944bdf924ade9149dd9048\
    dc8f47db8d46da8c45d98b44d78943d68842d58741d48540d3843fd2833ed1813dd0803ccf7f3bce7e3acd7c39cc7b38cb7a37c97836c87735\
    c77634c67533c57332c47231c37130c26f2fc16e2ec06d2dbf6c2cbe6a2bbd692abb6829ba6628b96527b86426b76325b66124b56023b45f22\
    b35e21b25c20b15b1faf5a1eae581dad571cac561cab551baa531aa95219a85118a74f17a64e16a54d15a34c14a24a13a14912a048119f4710\
    9e450f9d440e9c430d9b410c9a400b983f0a973e09963c08953b07";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lightness_goes_one_way() {
        for palette in Palette::ALL {
            assert_eq!((palette.hex().len(), Palette::named(palette.name())), (256 * 6, Some(palette)));
            let light: Vec<f64> = (0..=255).map(|i| lightness(palette.colour(i))).collect();
            let rises = |part: &[f64]| part.windows(2).all(|pair| pair[0] < pair[1]);
            let falls = |part: &[f64]| part.windows(2).all(|pair| pair[0] > pair[1]);
            let holds = match palette {
                Palette::Viridis | Palette::Cividis => rises(&light),
                Palette::Ink => falls(&light),
                Palette::Diverging => rises(&light[..128]) && falls(&light[128..]),
            };
            assert!(holds, "{palette:?}: {light:?}");
            // ends far apart; those of the diverging one equally dark
            let (first, last) = (light[0], light[255]);
            let apart = if palette == Palette::Diverging { light[128] - first } else { (first - last).abs() };
            assert!(apart > 55.0, "{palette:?}: {apart}");
            assert!(palette != Palette::Diverging || (first - last).abs() < 1.0, "{first} {last}");
        }
    }

    /// Entries of matplotlib 3's tables.
    #[test]
    fn viridis_and_cividis_are_matplotlibs() {
        let near = |palette: Palette, entry, [r, g, b]: [i32; 3]| {
            let [x, y, z] = palette.colour(entry).map(i32::from);
            assert!((x - r).abs().max((y - g).abs()).max((z - b).abs()) <= 2, "{palette:?} {entry}");
        };
        for (entry, rgb) in [(0, [68, 1, 84]), (64, [59, 82, 139]), (127, [33, 144, 141]), (255, [253, 231, 37])] {
            near(Palette::Viridis, entry, rgb);
        }
        for (entry, rgb) in [(0, [0, 34, 78]), (64, [67, 78, 108]), (255, [254, 232, 56])] {
            near(Palette::Cividis, entry, rgb);
        }
    }

    #[test]
    fn values_have_entries_and_colours_codes() {
        let seen = [-2.0, -1.0, 0.0, 0.5, 1.0, 7.0].map(|v| entry(v, (-1.0, 1.0)));
        assert_eq!(seen, [0, 0, 128, 191, 255, 255]);
        assert_eq!(entry(3.0, (3.0, 3.0)), 0);
        assert_eq!([[0, 0, 0], [255; 3], [255, 0, 0], [96, 134, 176], [118; 3]].map(terminal), [16, 231, 196, 67, 243]);
        assert_eq!([lightness([0; 3]), lightness([255; 3]).round()], [0.0, 100.0]);
    }
}
