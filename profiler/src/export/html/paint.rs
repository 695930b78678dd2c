//! Colours of the plots: placeholders, to which the page's style sheet assigns the colours of each
//! theme.

use plotters::style::RGBColor;

/// Axes and text.
pub(super) const INK: RGBColor = RGBColor(0, 0, 1);
/// Lines behind the data.
pub(super) const GRID: RGBColor = RGBColor(0, 0, 2);
/// The data, one colour a series.
pub(super) const SERIES: [RGBColor; 8] = [
    RGBColor(0, 0, 3),
    RGBColor(0, 0, 4),
    RGBColor(0, 0, 5),
    RGBColor(0, 0, 6),
    RGBColor(0, 0, 7),
    RGBColor(0, 0, 8),
    RGBColor(0, 0, 9),
    RGBColor(0, 0, 10),
];

/// The colour of a curve.
pub(super) fn series(number: usize) -> RGBColor {
    SERIES[number % SERIES.len()]
}
