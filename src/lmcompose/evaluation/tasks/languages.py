"""The English names of the languages in FLORES, NTREX and MGSM, for prompts."""

_NAMES = """
ace Acehnese; ace_Arab Acehnese (Arabic script); acm Mesopotamian Arabic; acq Ta'izzi-Adeni Arabic; aeb Tunisian
Arabic; afr Afrikaans; ajp South Levantine Arabic; aka Akan; als Albanian; amh Amharic; apc North Levantine Arabic;
ara Arabic; arb Arabic; ars Najdi Arabic; ary Moroccan Arabic; arz Egyptian Arabic; asm Assamese; ast Asturian; awa
Awadhi; ayr Aymara; aze Azerbaijani; azb South Azerbaijani; azj Azerbaijani; bak Bashkir; bam Bambara; ban Balinese;
bel Belarusian; bem Bemba; ben Bengali; bho Bhojpuri; bjn Banjar; bod Tibetan; bos Bosnian; bug Buginese; bul
Bulgarian; cat Catalan; ceb Cebuano; ces Czech; cjk Chokwe; ckb Central Kurdish; crh Crimean Tatar; cym Welsh; dan
Danish; deu German; dik Dinka; div Dhivehi; dyu Dyula; dzo Dzongkha; ell Greek; eng English; epo Esperanto; est
Estonian; eus Basque; ewe Ewe; fao Faroese; fas Persian; fij Fijian; fil Filipino; fin Finnish; fon Fon; fra French;
fuc Pulaar; ful Fula; fur Friulian; fuv Nigerian Fulfulde; gaz Oromo; gla Scottish Gaelic; gle Irish; glg Galician;
grn Guarani; guj Gujarati; hat Haitian Creole; hau Hausa; heb Hebrew; hin Hindi; hmn Hmong; hne Chhattisgarhi; hrv
Croatian; hun Hungarian; hye Armenian; ibo Igbo; ilo Ilocano; ind Indonesian; isl Icelandic; ita Italian; jav
Javanese; jpn Japanese; kab Kabyle; kac Jingpho; kam Kamba; kan Kannada; kas Kashmiri; kat Georgian; kaz Kazakh; kbp
Kabiye; kea Kabuverdianu; khk Mongolian; khm Khmer; kik Kikuyu; kin Kinyarwanda; kir Kyrgyz; kmb Kimbundu; kmr
Northern Kurdish; knc Central Kanuri; kon Kongo; kor Korean; lao Lao; lav Latvian; lij Ligurian; lim Limburgish; lin
Lingala; lit Lithuanian; lmo Lombard; ltg Latgalian; ltz Luxembourgish; lua Luba-Kasai; lug Ganda; luo Luo; lus Mizo;
lvs Latvian; mag Magahi; mai Maithili; mal Malayalam; mar Marathi; mey Hassaniya Arabic; min Minangkabau; mkd
Macedonian; mlg Malagasy; mlt Maltese; mni Meitei; mon Mongolian; mos Mossi; mri Maori; msa Malay; mya Burmese; nde
Northern Ndebele; nep Nepali; nld Dutch; nno Norwegian Nynorsk; nob Norwegian Bokmål; npi Nepali; nso Northern Sotho;
nus Nuer; nya Nyanja; oci Occitan; ori Odia; orm Oromo; ory Odia; pag Pangasinan; pan Punjabi; pap Papiamento; pbt
Southern Pashto; pes Persian; plt Malagasy; pol Polish; por Portuguese; prs Dari; pus Pashto; quy Quechua; ron
Romanian; run Rundi; rus Russian; sag Sango; san Sanskrit; sat Santali; scn Sicilian; shi Tachelhit; shn Shan; sin
Sinhala; slk Slovak; slv Slovenian; smo Samoan; sna Shona; snd Sindhi; som Somali; sot Southern Sotho; spa Spanish;
sqi Albanian; srd Sardinian; srp Serbian; ssw Swati; sun Sundanese; swa Swahili; swe Swedish; swh Swahili; szl
Silesian; tah Tahitian; tam Tamil; taq Tamasheq; tat Tatar; tel Telugu; tgk Tajik; tgl Tagalog; tha Thai; tir
Tigrinya; ton Tongan; tpi Tok Pisin; tsn Tswana; tso Tsonga; tuk Turkmen; tum Tumbuka; tur Turkish; twi Twi; tzm
Central Atlas Tamazight; uig Uyghur; ukr Ukrainian; umb Umbundu; urd Urdu; uzb Uzbek; uzn Uzbek; vec Venetian; ven
Venda; vie Vietnamese; war Waray; wol Wolof; xho Xhosa; ydd Yiddish; yor Yoruba; yue Cantonese; zho Chinese; zsm
Malay; zul Zulu; bn Bengali; de German; en English; es Spanish; fr French; ja Japanese; ru Russian; sw Swahili; te
Telugu; th Thai; zh Chinese
"""

NAMES: dict[str, str] = {
    code: name for code, _, name in (entry.strip().partition(" ") for entry in _NAMES.replace("\n", " ").split(";"))
}


def language_name(code: str) -> str:
    """The English name of a language by the code that its file bears, such as `som`, `som_Latn`, `eng-GB` or `sw`.

    A code that is not known stands for itself.
    """
    return NAMES.get(code) or NAMES.get(code.replace("-", "_").split("_")[0]) or code
